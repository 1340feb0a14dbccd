"""The loop that every generation runs: prefill, choose, step, until something ends it.

The last chosen token stays pending: after N new tokens the cache holds prompt + N - 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

from attrs import define, field, frozen

from tokenmill.contracts.processing import GenerationSettings
from tokenmill.generation.cancelling import Cancel
from tokenmill.generation.choosing import Choice, Chooser
from tokenmill.generation.memory import peak_memory
from tokenmill.generation.piece import FinishReason, Statistics
from tokenmill.session import Session

#: Each token with what ends the generation, if it does; no token when it was ended from outside.
Choices = Generator[tuple[Choice | None, FinishReason | None], None, None]


@frozen(eq=False, kw_only=True)
class Run:
    """One generation's facts.

    :param prompt: ids. The session holds a prefix of them, and the rest is fed.
    :param eos: the model's own end tokens, empty when they are ignored.
    :param capacity: tokens that fit into the session.
    :param chunk: prompt tokens per forward pass; cancelling and the deadline are looked at in between.
    :param chooser: of a vocabulary's width.
    """

    prompt: tuple[int, ...]
    settings: GenerationSettings
    eos: frozenset[int]
    capacity: int
    chunk: int
    chooser: Callable[[int], Chooser]
    cancel: Cancel

    @property
    def bound(self) -> tuple[int, FinishReason]:
        """Most new tokens, and what it means to reach it. The last one needs no room: it stays pending."""
        room = self.capacity - len(self.prompt) + 1
        wanted = self.settings.max_new_tokens
        return (room, "context") if wanted is None or wanted > room else (wanted, "length")

    def end_of(self, token: int, count: int) -> FinishReason | None:
        """Whether a token, the `count`-th new one, ends the generation."""
        if token in self.eos:
            return "eos"
        if token in self.settings.stop_token_ids:
            return "stop"
        most, reason = self.bound
        return reason if count >= most else None


@define
class Meter:
    """What a generation has used so far. Times are of forward passes and choices, never of the caller between two tokens."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    new_tokens: int = 0
    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0
    first_token_seconds: float | None = None
    called: float = field(factory=time.perf_counter)

    def statistics(self) -> Statistics:
        return Statistics(
            prompt_tokens=self.prompt_tokens,
            reused_tokens=self.reused_tokens,
            new_tokens=self.new_tokens,
            prompt_seconds=self.prompt_seconds,
            decode_seconds=self.decode_seconds,
            first_token_seconds=self.first_token_seconds,
            peak_memory=peak_memory(),
        )


def choose_tokens(session: Session, run: Run, meter: Meter) -> Choices:
    """Yield each token with what ends the generation, if it does; without a token when it was ended from outside.

    :raises GenerationError: no token can be chosen.
    :raises ExecutionError: a step failed; the session is as it was before it.
    """
    meter.prompt_tokens, meter.reused_tokens = len(run.prompt), session.length
    chooser = None if session.vocab_size is None else run.chooser(session.vocab_size)
    outcome = None
    for start in range(session.length, len(run.prompt), run.chunk):
        if ended := _ended_from_outside(run, meter):
            yield None, ended
            return
        begun = time.perf_counter()
        part = run.prompt[start : start + run.chunk]
        final = start + run.chunk >= len(run.prompt)
        outcome = session.decode(part, start, want=chooser.want if final and chooser else "last")
        meter.prompt_seconds += time.perf_counter() - begun
    chooser = chooser or run.chooser(len(outcome))  # type: ignore[arg-type]
    generated: list[int] = []
    begun = time.perf_counter()
    while True:
        choice = chooser.choose(outcome, run.prompt, generated)
        generated.append(choice.token)
        meter.new_tokens = len(generated)
        if meter.first_token_seconds is None:
            meter.first_token_seconds = time.perf_counter() - meter.called
        else:
            meter.decode_seconds += time.perf_counter() - begun
        ended = run.end_of(choice.token, len(generated))
        yield choice, ended
        if not ended and (ended := _ended_from_outside(run, meter)):
            yield None, ended
        if ended:
            return
        begun = time.perf_counter()
        outcome = session.decode([choice.token], session.length, want=chooser.want)


def _ended_from_outside(run: Run, meter: Meter) -> FinishReason | None:
    if run.cancel.is_set():
        return "cancelled"
    limit = run.settings.timeout_s
    return "deadline" if limit is not None and time.perf_counter() - meter.called >= limit else None
