"""The attention mask: which of the past and new entries each new token sees. Of one sequence without padding: all before it.

`[batch, past + rows]` of ones; or, where the graph does not make it causal itself, `[batch, heads, rows, past + rows]`,
which is added to the scores when it is a float, and chooses when it is bool.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tokenmill.contracts.routing import StepInput
from tokenmill.contracts.step import Step
from tokenmill.errors import PortError
from tokenmill.model.graph import Port
from tokenmill.model.roles import IoSpec

from tokenmill_strategies.routers.input import GeneratedInput, rank_of

_TYPES = ("int64", "int32", "int8", "uint8", "bool", "float", "float16", "bfloat16")


class AttentionMask:
    """Claims the port whose role is `attention_mask_input`."""

    name = "attention_mask"

    def __init__(self, options: Any = None) -> None:
        """Takes no options."""

    def claim(self, port: Port, io: IoSpec) -> StepInput | None:
        """:raises PortError: a type or rank that no mask has."""
        if port.name != io.attention_mask_input:
            return None
        rank = rank_of(port, 2)
        if port.element not in _TYPES or rank not in (1, 2, 3, 4):
            raise PortError(
                f"'{port}' cannot carry an attention mask",
                why=f"[batch, length] or [batch, heads, rows, length] of {', '.join(_TYPES)} is needed",
                remedy="correct attention_mask_input in model.io",
            )
        make = _Ones(port, rank).mask if rank <= 2 else _Causal(port, rank).mask
        return GeneratedInput(port, self.name, make)


class _Ones:
    """Views of one buffer that only grows: a mask costs no memory traffic but its reader's."""

    def __init__(self, port: Port, rank: int) -> None:
        self._leading = (1,) * (rank - 1)
        self._buffer = self._of(256, port.dtype)

    def mask(self, step: Step) -> npt.NDArray[Any]:
        length = step.mask_length
        if length > self._buffer.shape[-1]:
            self._buffer = self._of(max(length, 2 * self._buffer.shape[-1]), self._buffer.dtype)
        return self._buffer[..., :length]

    def _of(self, length: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        buffer = np.ones((*self._leading, length), dtype)
        buffer.flags.writeable = False
        return buffer


class _Causal:
    """Row i, the token at position past + i, sees the entries up to its own."""

    def __init__(self, port: Port, rank: int) -> None:
        shape = port.shape or ()
        # Behind the batch there may be an axis for the heads; a symbolic one broadcasts.
        heads = [extent if isinstance(extent, int) else 1 for extent in shape[1:-2]]
        self._leading = (1, *heads)
        self._dtype = port.dtype
        self._additive = port.element in ("float", "float16", "bfloat16")

    def mask(self, step: Step) -> npt.NDArray[Any]:
        seen = np.tri(step.rows, step.mask_length, step.position_start, dtype=np.bool_)
        # Not minus infinity: a row may be all masked for a reader that adds two masks, and softmax would make it NaN.
        lowest = -65504.0 if self._dtype.itemsize == 2 else float(np.finfo(np.float32).min)
        values = np.where(seen, 0.0, lowest) if self._additive else seen
        return np.ascontiguousarray(np.broadcast_to(values.astype(self._dtype), (*self._leading, *seen.shape)))
