"""No end before a minimum of new tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from tokenmill.contracts.processing import GenerationSettings


class MinNewTokens:
    """Rules stop tokens out while there are fewer than the minimum of new tokens."""

    def __init__(self, minimum: int, stops: npt.NDArray[np.int64]) -> None:
        self._minimum, self._stops = minimum, stops

    def __call__(
        self, logits: npt.NDArray[np.float32], prompt: Sequence[int], generated: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        # The token that is chosen now may be a stop only if the minimum stands before it.
        if len(generated) < self._minimum:
            logits[self._stops] = -np.inf
        return logits


def min_new_tokens(settings: GenerationSettings, vocabulary: int) -> MinNewTokens | None:
    """`settings.stop_token_ids` has the model's own end tokens, unless they are ignored."""
    stops = np.array([token for token in settings.stop_token_ids if 0 <= token < vocabulary], np.int64)
    return MinNewTokens(settings.min_new_tokens, stops) if settings.min_new_tokens and len(stops) else None
