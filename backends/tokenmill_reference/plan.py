"""A program with every node bound to a numpy callable, and the walk over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from attrs import field, frozen
from tokenmill.contracts.answers import Accepted, Answer, Declined
from tokenmill.contracts.fallback import HostFallback, HostOperator
from tokenmill.errors import UnsupportedOperatorError
from tokenmill.model.control_flow import CONTROL_FLOW, Body
from tokenmill.model.program import Instruction, Program

#: Takes inputs and the captured values of each body, by its attribute name.
ControlFlow = Callable[[Sequence[Any], dict[str, list[Any]]], Sequence[Any]]


@frozen(eq=False)
class _Call:
    operator: HostOperator
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    frees: tuple[int, ...]

    def run(self, slots: list[Any]) -> Sequence[Any]:
        return self.operator([None if slot is None else slots[slot] for slot in self.inputs])


@frozen(eq=False)
class _Branching:
    operator: ControlFlow
    captures: dict[str, tuple[int, ...]]
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    frees: tuple[int, ...]

    def run(self, slots: list[Any]) -> Sequence[Any]:
        captured = {name: [slots[outer] for outer in outers] for name, outers in self.captures.items()}
        return self.operator([None if slot is None else slots[slot] for slot in self.inputs], captured)


@frozen(eq=False)
class Plan:
    """A bound program. Holds no state of a run: threads share it.

    :param constants: read-only arrays by slot.
    """

    program: Program
    calls: tuple[_Call | _Branching, ...]
    constants: dict[int, Any]
    captured: tuple[int, ...]
    bodies: tuple[Plan, ...] = field(default=())

    def run(self, arguments: Sequence[Any], captured: Sequence[Any] = ()) -> list[Any]:
        """Run from inputs, by position, to outputs.

        :param arguments: `UNFED` leaves an input at its initializer.
        :param captured: values of `program.captures`, in that order.
        """
        slots: list[Any] = [None] * len(self.program.slot_names)
        for slot, array in self.constants.items():
            slots[slot] = array
        for slot, value in zip(self.captured, captured, strict=True):
            slots[slot] = value
        for slot, value in zip(self.program.inputs, arguments, strict=True):
            if value is not UNFED:
                slots[slot] = value
        for call in self.calls:
            results = call.run(slots)
            for output, result in zip(call.outputs, results, strict=False):
                if output is not None:
                    slots[output] = result
            for slot in call.frees:
                slots[slot] = None
        return [slots[slot] for slot in self.program.outputs]

    @property
    def constant_bytes(self) -> int:
        """Memory of the constants, those of subgraphs included."""
        return sum(array.nbytes for array in self.constants.values()) + sum(body.constant_bytes for body in self.bodies)


UNFED = object()


def build_plan(program: Program, fallback: HostFallback) -> Plan:
    """Check that every operator exists, then bind every node.

    :raises UnsupportedOperatorError: names all that are missing.
    """
    answers = {}
    missing = []
    for instruction in program.walk():
        key = (instruction.domain, instruction.operator, instruction.version)
        if key not in answers:
            answers[key] = _supported(instruction, fallback)
        if isinstance(answer := answers[key], Declined):
            missing.append(f"{instruction.title} ({answer.reason})")
    if missing:
        raise UnsupportedOperatorError(
            f"{len(missing)} node(s) use operators that the reference backend does not have: {', '.join(missing)}",
            remedy="export with standard ONNX operators, or install a plugin whose host fallback has them",
        )
    return _bind(program, fallback)


def _supported(instruction: Instruction, fallback: HostFallback) -> Answer:
    if instruction.domain == "" and instruction.operator in CONTROL_FLOW:
        return Accepted()
    return fallback.supports(instruction.domain, instruction.operator, instruction.version)


def _bind(program: Program, fallback: HostFallback) -> Plan:
    calls: list[_Call | _Branching] = []
    inner: list[Plan] = []
    for instruction in program.instructions:
        if instruction.domain == "" and instruction.operator in CONTROL_FLOW:
            plans = {name: _bind(body, fallback) for name, body in instruction.bodies.items()}
            inner.extend(plans.values())
            calls.append(_branching(instruction, plans))
        else:
            operator = fallback.bind(instruction)
            calls.append(_Call(operator, instruction.inputs, instruction.outputs, instruction.frees))
    return Plan(
        program=program,
        calls=tuple(calls),
        constants={slot: _read_only(program.constant(slot)) for slot in program.constants},
        captured=tuple(slot for _, slot in program.captures),
        bodies=tuple(inner),
    )


def _branching(instruction: Instruction, plans: dict[str, Plan]) -> _Branching:
    bodies = {name: Body(plan.run, plan.program.input_names, plan.program.output_names) for name, plan in plans.items()}
    return _Branching(
        operator=CONTROL_FLOW[instruction.operator](instruction, bodies),
        captures={name: tuple(outer for outer, _ in body.captures) for name, body in instruction.bodies.items()},
        inputs=instruction.inputs,
        outputs=instruction.outputs,
        frees=instruction.frees,
    )


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    view = array.view()
    view.flags.writeable = False
    return view
