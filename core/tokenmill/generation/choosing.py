"""Which token comes next: the chain of processors, then the highest logit or a draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from attrs import frozen

from tokenmill.contracts.descriptors import LogitProcessorDescriptor
from tokenmill.contracts.processing import GenerationSettings, LogitProcessor
from tokenmill.errors import GenerationError
from tokenmill.generation.piece import TokenProbability
from tokenmill.generation.sampling import Logits, draw, highest, log_probabilities, probabilities
from tokenmill.hooks.registry import Registry
from tokenmill.selection import make


@frozen
class Choice:
    """A token, and what the model itself thought of it when that is asked for."""

    token: int
    logprob: float | None = None
    alternatives: tuple[TokenProbability, ...] = ()


class Chooser:
    """Chooses the tokens of one generation.

    :param chain: processors in their order.
    """

    def __init__(self, settings: GenerationSettings, chain: Sequence[LogitProcessor]) -> None:
        self._chain = tuple(chain)
        self._sampled = settings.temperature > 0
        self._logprobs = settings.logprobs
        self._generator = np.random.default_rng(settings.seed)

    @property
    def want(self) -> Literal["token", "last"]:
        """What it needs of a step: the backend's own argmax when nothing else looks at the logits."""
        return "last" if self._chain or self._sampled or self._logprobs is not None else "token"

    def choose(self, outcome: Any, prompt: Sequence[int], generated: Sequence[int]) -> Choice:
        """:param outcome: of the step: a token, or `[vocab] float32`, which it may change.
        :raises GenerationError: every token is ruled out, or a processor gave something else than logits.
        """
        if not isinstance(outcome, np.ndarray) or outcome.ndim == 0:
            return Choice(int(outcome))
        own = None if self._logprobs is None else log_probabilities(outcome)
        logits = self._processed(outcome, prompt, generated)
        token = draw(probabilities(logits), self._generator) if self._sampled else highest(logits)
        if own is None:
            return Choice(token)
        top = np.argsort(-own, kind="stable")[: self._logprobs]
        return Choice(token, float(own[token]), tuple(TokenProbability(int(i), float(own[i])) for i in top))

    def _processed(self, logits: Logits, prompt: Sequence[int], generated: Sequence[int]) -> Logits:
        for processor in self._chain:
            shape = logits.shape
            logits = processor(logits, prompt, generated)
            if not isinstance(logits, np.ndarray) or logits.shape != shape:
                found = getattr(logits, "shape", type(logits).__name__)
                raise GenerationError(
                    f"logit processor {type(processor).__name__} gave {found}",
                    why=f"logits of {list(shape)} are needed",
                )
        return logits


def make_chooser(registry: Registry, settings: GenerationSettings, vocabulary: int) -> Chooser:
    """A chooser with every active processor that the settings do not leave idle, by priority.

    :param settings: `stop_token_ids` with the model's own end tokens, unless they are ignored.
    :raises GenerationError: settings that do not fit the vocabulary.
    :raises PluginError: a processor that cannot be made.
    """
    made = (make(descriptor, settings, vocabulary) for descriptor in registry.active(LogitProcessorDescriptor))
    return Chooser(settings, [processor for processor in made if processor is not None])
