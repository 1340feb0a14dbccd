"""A bias for chosen tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from tokenmill.contracts.processing import GenerationSettings
from tokenmill.errors import GenerationError


class LogitBias:
    """`logits[id] += bias`."""

    def __init__(self, ids: npt.NDArray[np.int64], biases: npt.NDArray[np.float32]) -> None:
        self._ids, self._biases = ids, biases

    def __call__(
        self, logits: npt.NDArray[np.float32], prompt: Sequence[int], generated: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        logits[self._ids] += self._biases
        return logits


def logit_bias(settings: GenerationSettings, vocabulary: int) -> LogitBias | None:
    """:raises GenerationError: a bias of a token that the vocabulary lacks, or one that is not finite."""
    if not settings.logit_bias:
        return None
    for token, bias in settings.logit_bias.items():
        if not 0 <= token < vocabulary or not np.isfinite(bias):
            raise GenerationError(
                f"generation.logit_bias cannot add {bias} to token {token}",
                why=f"ids go from 0 to {vocabulary - 1}, and biases are finite",
            )
    ids = np.fromiter(settings.logit_bias.keys(), np.int64)
    return LogitBias(ids, np.fromiter(settings.logit_bias.values(), np.float32))
