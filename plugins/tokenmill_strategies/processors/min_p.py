"""Tokens with a share of the highest probability."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from tokenmill.contracts.processing import GenerationSettings


class MinP:
    """Keeps tokens of at least `min_p` times the highest probability: `logit >= max + ln(min_p)`."""

    def __init__(self, share: float) -> None:
        self._distance = math.log(share)

    def __call__(
        self, logits: npt.NDArray[np.float32], prompt: Sequence[int], generated: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        logits[logits < logits.max() + self._distance] = -np.inf
        return logits


def min_p(settings: GenerationSettings, vocabulary: int) -> MinP | None:
    """Idle when the choice is greedy, and at 0."""
    return MinP(settings.min_p) if settings.temperature and settings.min_p else None
