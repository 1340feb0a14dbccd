"""Positions of the new tokens: `[batch, rows]`, `[rows]`, or `[axes, batch, rows]` with one row for each rotary axis.

Text has the same position on each of the axes (multimodal rotary embedding, Qwen2-VL technical report, section 2.1).
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

#: Time, height and width, where the port does not say how many axes there are.
_ROTARY_AXES = 3


class PositionIds:
    """Claims the port whose role is `position_ids_input`."""

    name = "position_ids"

    def __init__(self, options: Any = None) -> None:
        """Takes no options."""

    def claim(self, port: Port, io: IoSpec) -> StepInput | None:
        """:raises PortError: a type or rank that cannot carry positions."""
        if port.name != io.position_ids_input:
            return None
        rank = rank_of(port, 2)
        if port.element not in ("int64", "int32") or rank not in (1, 2, 3):
            raise PortError(
                f"'{port}' cannot carry position ids",
                why="int64 or int32 with [batch, rows], [rows] or [axes, batch, rows] is needed",
                remedy="correct position_ids_input in model.io",
            )
        dtype, leading = port.dtype, _leading(port, rank)

        def positions(step: Step) -> npt.NDArray[Any]:
            row = np.arange(step.position_start, step.mask_length, dtype=dtype)
            return np.ascontiguousarray(np.broadcast_to(row, (*leading, step.rows)))

        return GeneratedInput(port, self.name, positions)


def _leading(port: Port, rank: int) -> tuple[int, ...]:
    if rank < 3:
        return (1,) * (rank - 1)
    axes = port.shape[0] if port.shape else None
    return (axes if isinstance(axes, int) and axes > 0 else _ROTARY_AXES, 1)
