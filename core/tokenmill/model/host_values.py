"""Values on the host: what a run gives back, and how a message describes one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class HostOutput:
    """One output of a run: an array, or for other ONNX types what stands for them (list, None).

    `shape` of a sequence is its length; an absent optional has none.
    """

    __slots__ = ("_held",)

    device = "cpu"

    def __init__(self, held: Any) -> None:
        self._held = held

    @property
    def shape(self) -> tuple[int, ...]:
        if isinstance(self._held, np.ndarray):
            return self._held.shape
        return () if self._held is None else (len(self._held),)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._held.dtype if isinstance(self._held, np.ndarray) else np.dtype(object)

    def numpy(self) -> npt.NDArray[Any]:
        """The value itself, without a copy. A sequence comes as a list of arrays, an absent optional as None."""
        return self._held

    def __dlpack__(self, **kwargs: Any) -> object:
        if not isinstance(self._held, np.ndarray):
            raise BufferError("only tensors can be exchanged through DLPack; this output is a sequence or an optional")
        return self._held.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # kDLCPU


def describe(value: Any) -> str:
    """Shape and type of a value, for messages: `float32[2, 3]`, `sequence of 4`, `-`."""
    if value is None:
        return "-"
    if isinstance(value, (np.ndarray, np.generic)):
        name = "string" if value.dtype == object else value.dtype.name
        return f"{name}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"sequence of {len(value)}"
    return type(value).__name__
