"""From logits to a token: probabilities in float64, and a seeded draw."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenmill.errors import GenerationError

Logits = npt.NDArray[np.float32]


def log_probabilities(logits: Logits) -> npt.NDArray[np.float64]:
    """`logit - ln(sum(exp(logits)))`, `[vocab] float64`. Minus infinity stays."""
    shifted = logits.astype(np.float64) - float(logits.max())
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), np.float64)


def probabilities(logits: Logits) -> npt.NDArray[np.float64]:
    """Softmax, `[vocab] float64`.

    :raises GenerationError: every token is ruled out, or a processor made a logit NaN or infinite.
    """
    _check(logits)
    weights = np.exp(logits.astype(np.float64) - float(logits.max()))
    return np.asarray(weights / weights.sum(), np.float64)


def highest(logits: Logits) -> int:
    """The highest logit's index, the lowest one of equals. :raises GenerationError: see `probabilities`."""
    _check(logits)
    return int(logits.argmax())


def draw(distribution: npt.NDArray[np.float64], generator: np.random.Generator) -> int:
    """A token drawn by inverting the cumulative distribution: one uniform number a token, whatever the vocabulary."""
    possible = np.flatnonzero(distribution)
    sums = np.cumsum(distribution[possible])
    index = int(np.searchsorted(sums, generator.random() * sums[-1], side="right"))
    return int(possible[min(index, len(possible) - 1)])


def _check(logits: Logits) -> None:
    top = float(logits.max())  # NaN propagates
    if not np.isfinite(top):
        raise GenerationError(
            "no token can be chosen",
            why="the processors ruled every token out" if top == -np.inf else f"a processor made a logit {top}",
            remedy="loosen generation.logit_bias, generation.min_new_tokens or stop tokens, or disable the processor",
        )
