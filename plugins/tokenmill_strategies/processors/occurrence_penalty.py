"""Less of what the output holds: a part per occurrence, and a part once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from tokenmill.contracts.processing import GenerationSettings

from tokenmill_strategies.processors.occurrences import Occurrences


class OccurrencePenalty:
    """`logits[id] -= count(id) * frequency + (count(id) > 0) * presence`, over the output alone."""

    def __init__(self, frequency: float, presence: float, vocabulary: int) -> None:
        self._frequency, self._presence = np.float32(frequency), np.float32(presence)
        self._occurred = Occurrences(vocabulary)

    def __call__(
        self, logits: npt.NDArray[np.float32], prompt: Sequence[int], generated: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        counts = self._occurred.update(generated)
        ids = np.flatnonzero(counts)
        logits[ids] -= counts[ids].astype(np.float32) * self._frequency + self._presence
        return logits


def occurrence_penalty(settings: GenerationSettings, vocabulary: int) -> OccurrencePenalty | None:
    if settings.frequency_penalty == settings.presence_penalty == 0:
        return None
    return OccurrencePenalty(settings.frequency_penalty, settings.presence_penalty, vocabulary)
