"""A prompt before its first step: checked, and joined to what the session holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenmill.errors import CapacityError, GenerationError
from tokenmill.session import Session
from tokenmill.session.tokens import token_ids


def checked_prompt(tokens: Any, session: Session, capacity: int) -> tuple[int, ...]:
    """The ids of a prompt, before anything has changed.

    :param capacity: tokens that fit.
    :raises GenerationError: no tokens.
    :raises StepError: something else than a flat list of ids, or an id out of the vocabulary.
    :raises CapacityError: more tokens than fit.
    """
    if len(tokens) == 0:
        raise GenerationError(
            "the prompt is empty", why="a model continues at least one token", remedy="give a text or token ids"
        )
    ids = token_ids(tokens, session.vocab_size)
    if len(ids) > capacity:
        raise CapacityError(
            f"the prompt has {len(ids)} tokens, the cache holds {capacity}",
            remedy=f"shorten it, or set cache.max_len to {len(ids) + 1} or more, up to the model's context",
        )
    return tuple(ids.tolist())


def start_over(session: Session, prompt: Sequence[int]) -> int:
    """Forget what the session holds. :returns: tokens of the prompt that need no step: none."""
    session.reset()
    return 0


def keep_common_prefix(session: Session, prompt: Sequence[int]) -> int:
    """Rewind to what the session's tokens and the prompt have in common; the prompt's last token is always fed.

    :returns: tokens of the prompt that need no step.
    """
    held = session.tokens
    bound = min(len(held), len(prompt) - 1)
    common = next((index for index in range(bound) if held[index] != prompt[index]), bound)
    session.rewind(common)
    return common
