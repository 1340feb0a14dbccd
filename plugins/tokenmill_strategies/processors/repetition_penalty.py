"""Less of what was there already."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from tokenmill.contracts.processing import GenerationSettings

from tokenmill_strategies.processors.occurrences import Occurrences


class RepetitionPenalty:
    """Divides positive and multiplies negative logits of tokens seen in prompt or output (Keskar et al. 2019, CTRL)."""

    def __init__(self, penalty: float, vocabulary: int) -> None:
        self._penalty, self._vocabulary = np.float32(penalty), vocabulary
        self._seen: Occurrences | None = None

    def __call__(
        self, logits: npt.NDArray[np.float32], prompt: Sequence[int], generated: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        if self._seen is None:
            self._seen = Occurrences(self._vocabulary, prompt)
        ids = np.flatnonzero(self._seen.update(generated))
        found = logits[ids]
        logits[ids] = np.where(found > 0, found / self._penalty, found * self._penalty)
        return logits


def repetition_penalty(settings: GenerationSettings, vocabulary: int) -> RepetitionPenalty | None:
    penalty = settings.repetition_penalty
    return None if penalty == 1 else RepetitionPenalty(penalty, vocabulary)
