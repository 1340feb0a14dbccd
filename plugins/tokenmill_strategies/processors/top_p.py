"""The smallest set of tokens that holds a probability."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from tokenmill.contracts.processing import GenerationSettings

#: Most sets are far smaller: sorting these is much faster than sorting a vocabulary.
_HEAD = 1024


class TopP:
    """Keeps the most probable tokens until their probabilities reach p (Holtzman et al. 2020); at least one."""

    def __init__(self, p: float) -> None:
        self._p = p

    def __call__(
        self, logits: npt.NDArray[np.float32], prompt: Sequence[int], generated: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        weights = np.exp(logits.astype(np.float64) - float(logits.max()))
        wanted = self._p * float(weights.sum())
        kept = self._reaching(weights, wanted, _HEAD)
        shaped = np.full_like(logits, -np.inf)
        shaped[kept] = logits[kept]
        return shaped

    @staticmethod
    def _reaching(weights: npt.NDArray[np.float64], wanted: float, head: int) -> npt.NDArray[np.intp]:
        ids = np.arange(len(weights))
        if head < len(weights):
            ids = np.sort(np.argpartition(weights, -head)[-head:])
        ranked = ids[np.argsort(-weights[ids], kind="stable")]  # of equal ones, the lower id first
        sums = np.cumsum(weights[ranked])
        if head < len(weights) and sums[-1] < wanted:
            return TopP._reaching(weights, wanted, len(weights))
        return ranked[: int(np.searchsorted(sums, wanted)) + 1]


def top_p(settings: GenerationSettings, vocabulary: int) -> TopP | None:
    """Idle when the choice is greedy, and at 1."""
    return TopP(settings.top_p) if settings.temperature and settings.top_p < 1 else None
