"""Storage of a past/present pair at capacity, of which the graph sees the logical prefix."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tokenmill.errors import ExecutionError
from tokenmill.model.roles import PortPair


class PortBinding:
    """Zeroed storage at one address. An append-aware operator writes behind the logical length.

    :param axis: the axis of `shape` that is the sequence, at capacity.
    """

    def __init__(self, pair: PortPair, shape: tuple[int, ...], dtype: np.dtype[Any], axis: int) -> None:
        self.pair, self.axis = pair, axis
        # numpy asks for zeroed pages, which take memory only once they are written.
        self.storage: npt.NDArray[Any] = np.zeros(shape, dtype)
        self.address: int = self.storage.ctypes.data
        self.logical_length = 0

    @property
    def capacity(self) -> int:
        return self.shape[self.axis]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.storage.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.storage.dtype

    @property
    def nbytes(self) -> int:
        return self.storage.nbytes

    def view(self, length: int) -> npt.NDArray[Any]:
        """The first `length` entries, without a copy."""
        return self.storage[(*(slice(None),) * self.axis, slice(length))]

    def set_length(self, length: int) -> None:
        self._check(length)
        self.logical_length = length

    def read(self, length: int | None = None) -> npt.NDArray[Any]:
        length = self.logical_length if length is None else length
        self._check(length)
        return self.view(length).copy()

    def write(self, value: npt.NDArray[Any]) -> None:
        length = value.shape[self.axis]
        self._check(length)
        self.view(length)[...] = value
        self.logical_length = length

    def _check(self, length: int) -> None:
        if not 0 <= length <= self.capacity:
            raise ExecutionError(f"'{self.pair.past}' holds {self.capacity} entries", why=f"{length} were asked for")
