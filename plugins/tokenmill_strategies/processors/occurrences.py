"""How often each token occurred, kept up to date token by token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class Occurrences:
    """Counts over a text that mostly grows at its end: an update costs what is new, not what is there.

    :param vocabulary: ids from there on are not counted.
    """

    def __init__(self, vocabulary: int, seen: Sequence[int] = ()) -> None:
        self._base = np.zeros(vocabulary, np.int32)
        _count(self._base, seen)
        self._counts = self._base.copy()
        self._last: list[int] = []

    def update(self, generated: Sequence[int]) -> npt.NDArray[np.int32]:
        """Counts with these tokens behind the first ones: `[vocab] int32`, not to be changed."""
        known = len(self._last)
        if known > len(generated) or (known and generated[known - 1] != self._last[-1]):
            # Tokens were taken back.
            self._counts, self._last, known = self._base.copy(), [], 0
        new = list(generated[known:])
        _count(self._counts, new)
        self._last += new
        return self._counts


def _count(counts: npt.NDArray[np.int32], tokens: Sequence[int]) -> None:
    ids = np.asarray(tokens, np.int64)
    np.add.at(counts, ids[(ids >= 0) & (ids < len(counts))], 1)
