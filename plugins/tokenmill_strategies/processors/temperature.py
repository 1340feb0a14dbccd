"""Sharper or flatter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from tokenmill.contracts.processing import GenerationSettings


class Temperature:
    """`(logits - max) / temperature`. Shifted first: no temperature, however small, makes the highest one infinite."""

    def __init__(self, temperature: float) -> None:
        self._temperature = np.float32(temperature)

    def __call__(
        self, logits: npt.NDArray[np.float32], prompt: Sequence[int], generated: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        logits -= logits.max()
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            shifted = logits / self._temperature
        shifted[logits == 0] = 0  # also where the temperature is too small for float32
        return shifted


def temperature(settings: GenerationSettings, vocabulary: int) -> Temperature | None:
    """Idle at 0, which is greedy, and at 1."""
    return None if settings.temperature in (0, 1) else Temperature(settings.temperature)
