"""How a token is chosen: the settings of a generation, and the links that change logits before the choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from attrs import field, frozen
from attrs.validators import and_, ge, gt, instance_of, le, optional


def _texts(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


@frozen(kw_only=True)
class GenerationSettings:
    """What one generation may do. Section `[generation]` of the configuration, and the keywords of `generate`.

    :param max_new_tokens: bound on new tokens; None leaves the model's context as the only bound.
    :param min_new_tokens: stop tokens are not allowed before.
    :param temperature: 0 is greedy: the highest logit, the lowest id among equals.
    :param top_k: keep the k highest logits; 0 keeps all.
    :param top_p: keep the smallest set of tokens whose probabilities reach p; 1 keeps all.
    :param min_p: keep tokens with at least this share of the highest probability; 0 keeps all.
    :param repetition_penalty: divides positive and multiplies negative logits of tokens seen in prompt or output.
    :param frequency_penalty: subtracted per occurrence in the output.
    :param presence_penalty: subtracted once for a token that occurs in the output.
    :param logit_bias: added to the logits, by token id.
    :param stop: strings that end the generation, also across token borders; not part of the text.
    :param stop_token_ids: token ids that end it, besides the model's own end tokens.
    :param ignore_eos: do not stop at the model's own end tokens.
    :param seed: of the random generator; None takes a fresh one.
    :param logprobs: how many alternatives to report per token; 0 reports the chosen one's alone, None nothing.
    :param timeout_s: seconds after which it stops with what it has.
    """

    max_new_tokens: int | None = field(default=None, validator=optional(and_(instance_of(int), ge(1))))
    min_new_tokens: int = field(default=0, validator=and_(instance_of(int), ge(0)))
    temperature: float = field(default=0.0, converter=float, validator=and_(ge(0), le(100)))
    top_k: int = field(default=0, validator=and_(instance_of(int), ge(0)))
    top_p: float = field(default=1.0, converter=float, validator=and_(gt(0), le(1)))
    min_p: float = field(default=0.0, converter=float, validator=and_(ge(0), le(1)))
    repetition_penalty: float = field(default=1.0, converter=float, validator=gt(0))
    frequency_penalty: float = field(default=0.0, converter=float, validator=and_(ge(-2), le(2)))
    presence_penalty: float = field(default=0.0, converter=float, validator=and_(ge(-2), le(2)))
    logit_bias: Mapping[int, float] = field(factory=dict)
    stop: tuple[str, ...] = field(default=(), converter=_texts)
    stop_token_ids: tuple[int, ...] = field(default=(), converter=tuple)
    ignore_eos: bool = False
    seed: int | None = field(default=None, validator=optional(ge(0)))
    logprobs: int | None = field(default=None, validator=optional(and_(ge(0), le(100))))
    timeout_s: float | None = field(default=None, validator=optional(gt(0)))


class LogitProcessor(Protocol):
    """One link of the chain, made once per generation by the descriptor's factory."""

    def __call__(
        self, logits: npt.NDArray[np.float32], prompt: Sequence[int], generated: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        """:param logits: `[vocab] float32`, owned by the chain: it may be changed in place and returned."""
