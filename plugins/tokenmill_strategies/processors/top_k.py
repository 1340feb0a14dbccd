"""The k highest logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from tokenmill.contracts.processing import GenerationSettings


class TopK:
    """Keeps the k highest logits; of equal ones at the border, those with the lowest ids."""

    def __init__(self, k: int) -> None:
        self._k = k

    def __call__(
        self, logits: npt.NDArray[np.float32], prompt: Sequence[int], generated: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        border = np.partition(logits, -self._k)[-self._k]
        keep = logits > border
        keep[np.flatnonzero(logits == border)[: self._k - int(keep.sum())]] = True
        logits[~keep] = -np.inf
        return logits


def top_k(settings: GenerationSettings, vocabulary: int) -> TopK | None:
    """Idle when the choice is greedy, at 0, and when it would keep everything."""
    return TopK(settings.top_k) if settings.temperature and 0 < settings.top_k < vocabulary else None
