"""Computing the vocabulary projection for the last row alone.

Of a prefill only the last row of the logits is usually wanted, and the projection is its largest matmul. The last row-wise
operator before the logits then gets the last row of its input, provided that nothing but element-wise operators follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenmill.model.program import Program

from tokenmill_cpu.call import Call
from tokenmill_cpu.frame import Frame
from tokenmill_cpu.operators.operator import Operator
from tokenmill_cpu.plan import Branching, Plan

#: Operators through which a row goes by itself, whatever their other inputs are, if those are constants.
_ELEMENT_WISE = frozenset({"Cast", "Mul", "Div", "Add", "Sub", "Tanh", "Identity", "Neg", "Clip"})


class LastRow(Operator):
    """An operator that gets the last row of its first input when that is all that is wanted."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self.packs = operator.packs
        self.queues = operator.queues
        self.weight_bytes = operator.weight_bytes

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        if frame.last_row_only and inputs[0].ndim == 3 and inputs[0].shape[1] > 1:
            frame.finish()
            inputs = [np.ascontiguousarray(inputs[0][:, -1:, :]), *inputs[1:]]
        return self._operator.run(frame, inputs)


def narrow_projection(plan: Plan, logits: str | None) -> None:
    """Wrap the vocabulary projection of a plan's logits, if it can be narrowed."""
    program = plan.program
    if logits is None or logits not in program.output_names:
        return
    projection = _projection(plan, program.outputs[program.output_names.index(logits)])
    if projection is not None and projection.operator is not None:
        projection.operator = LastRow(projection.operator)


def _projection(plan: Plan, slot: int) -> Call | None:
    writers = {output: call for call in plan.calls for output in call.instruction.outputs if output is not None}
    read_once = {slot for slot, readers in plan.program.reads.items() if len(readers) == 1}
    call: Call | Branching | None = writers.get(slot)
    while isinstance(call, Call):
        if call.operator is not None and call.operator.row_wise:
            return call
        source = _only_computed_input(call, plan.program)
        if call.instruction.operator not in _ELEMENT_WISE or source not in read_once or source in plan.program.outputs:
            return None
        call = writers.get(source)
    return None


def _only_computed_input(call: Call, program: Program) -> int | None:
    computed = [slot for slot in call.instruction.inputs if slot is not None and slot not in program.constants]
    return computed[0] if len(computed) == 1 else None
