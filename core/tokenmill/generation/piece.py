"""What a generation yields, and what it comes to."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

#: `eos`: the model's own end token. `stop`: a stop string or stop token. `length`: `max_new_tokens` are there.
#: `context`: the cache is full. `cancelled`, `deadline`: from outside.
FinishReason = Literal["eos", "stop", "length", "context", "cancelled", "deadline"]


@frozen
class TokenProbability:
    """A token and the natural logarithm of the probability that the model itself gave it."""

    token: int
    logprob: float


@frozen(kw_only=True)
class Statistics:
    """How long a generation took, and what it used.

    :param prompt_tokens: tokens of the prompt.
    :param reused_tokens: of these, how many the cache held already.
    :param new_tokens: tokens that were chosen, one that ended the generation included.
    :param prompt_seconds: forward passes over the prompt.
    :param decode_seconds: forward passes and choices behind the first new token.
    :param first_token_seconds: from the call to the first new token; None without one.
    :param peak_memory: the process's highest resident memory so far, in bytes; None where the system does not tell.
    """

    prompt_tokens: int
    reused_tokens: int
    new_tokens: int
    prompt_seconds: float
    decode_seconds: float
    first_token_seconds: float | None
    peak_memory: int | None

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens per second, without those that the cache held; 0 when nothing ran."""
        fed = self.prompt_tokens - self.reused_tokens
        return fed / self.prompt_seconds if self.prompt_seconds > 0 else 0.0

    @property
    def decode_rate(self) -> float:
        """New tokens per second behind the first; 0 when there is none."""
        return max(self.new_tokens - 1, 0) / self.decode_seconds if self.decode_seconds > 0 else 0.0


@frozen(kw_only=True)
class Piece:
    """One token as it comes.

    :param text: what it adds to the text. Empty while a character is incomplete or a stop string may have begun.
    :param token: its id; None in a last piece without a token (`cancelled`, `deadline`).
    :param logprob: of the token, when `logprobs` is set: by the model's own distribution, before processors and temperature.
    :param alternatives: the `logprobs` most probable tokens of the same distribution.
    :param finish_reason: set in the last piece, and in no other.
    :param statistics: of the whole, in the last piece.
    """

    text: str
    token: int | None = None
    logprob: float | None = None
    alternatives: tuple[TokenProbability, ...] = ()
    finish_reason: FinishReason | None = None
    statistics: Statistics | None = None


@frozen(kw_only=True)
class Generation:
    """Everything that a generation came to.

    :param text: without end tokens and stop strings.
    :param tokens: every token that was chosen, one that ended it included.
    :param logprobs: of each token; empty unless `logprobs` is set.
    :param alternatives: per token.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    statistics: Statistics
    logprobs: tuple[float, ...] = ()
    alternatives: tuple[tuple[TokenProbability, ...], ...] = ()

    def __str__(self) -> str:
        return self.text
