"""A program with every node prepared, and the walk over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from attrs import define, field, frozen
from tokenmill.contracts.answers import Declined
from tokenmill.contracts.fallback import HostFallback, HostOperator
from tokenmill.errors import UnsupportedOperatorError
from tokenmill.model.control_flow import CONTROL_FLOW, Body
from tokenmill.model.program import Instruction, Program

from tokenmill_cpu.frame import Frame
from tokenmill_cpu.operators import preparation_of
from tokenmill_cpu.operators.operator import Node, Operator

UNFED = object()

#: Makes a node of an instruction and its program.
MakeNode = Callable[[Instruction, Program], Node]


@define(eq=False)
class Call:
    """One instruction: our operator, the host's, or ours with the host's for inputs that ours does not take."""

    program: Program
    instruction: Instruction
    operator: Operator | None
    fallback: HostFallback
    declined: str = ""
    _host: HostOperator | None = field(default=None, init=False)
    _unpacked: dict[int, Any] = field(factory=dict, init=False)

    def run(self, frame: Frame, slots: list[Any]) -> Sequence[Any]:
        inputs = [None if slot is None else slots[slot] for slot in self.instruction.inputs]
        if self.operator is not None:
            results = self.operator.run(frame, inputs)
            if results is not NotImplemented:
                return results
        if self._host is None:
            packed = () if self.operator is None else self.operator.packs
            self._unpacked = {index: self.program.constant(self.instruction.inputs[index]) for index in packed}
            self._host = self.fallback.bind(self.instruction)
        for index, array in self._unpacked.items():
            inputs[index] = array
        frame.host_calls += 1
        return self._host(inputs)

    @property
    def runs_on(self) -> str:
        return "host fallback" if self.operator is None else "cpu"


@frozen(eq=False)
class Branching:
    """A node with bodies."""

    instruction: Instruction
    bodies: dict[str, Plan]
    runs_on: str = "cpu"

    def run(self, frame: Frame, slots: list[Any]) -> Sequence[Any]:
        inputs = [None if slot is None else slots[slot] for slot in self.instruction.inputs]
        captured = {
            name: [slots[outer] for outer, _ in body.captures] for name, body in self.instruction.bodies.items()
        }
        bodies = {
            name: Body(
                lambda arguments, values, plan=plan: plan.run(frame, arguments, values),
                plan.program.input_names,
                plan.program.output_names,
            )
            for name, plan in self.bodies.items()
        }
        return CONTROL_FLOW[self.instruction.operator](self.instruction, bodies)(inputs, captured)


@frozen(eq=False)
class Plan:
    """A prepared program. Holds no state of a run: threads share it.

    :param constants: read-only arrays by slot, without those that only packed weights were made of.
    """

    program: Program
    calls: tuple[Call | Branching, ...]
    constants: dict[int, Any]

    def run(self, frame: Frame, arguments: Sequence[Any], captured: Sequence[Any] = ()) -> list[Any]:
        """Run from inputs, by position, to outputs.

        :param arguments: `UNFED` leaves an input at its initializer.
        :param captured: values of `program.captures`, in that order.
        """
        slots: list[Any] = [None] * len(self.program.slot_names)
        for slot, array in self.constants.items():
            slots[slot] = array
        for (_, slot), value in zip(self.program.captures, captured, strict=True):
            slots[slot] = value
        for slot, value in zip(self.program.inputs, arguments, strict=True):
            if value is not UNFED:
                slots[slot] = value
        for call in self.calls:
            results = call.run(frame, slots)
            for output, result in zip(call.instruction.outputs, results, strict=False):
                if output is not None:
                    slots[output] = result
            for slot in call.instruction.frees:
                slots[slot] = None
        return [slots[slot] for slot in self.program.outputs]

    def walk(self) -> list[Call | Branching]:
        """Every call, those of bodies included."""
        found: list[Call | Branching] = []
        for call in self.calls:
            found.append(call)
            if isinstance(call, Branching):
                for body in call.bodies.values():
                    found.extend(body.walk())
        return found

    @property
    def weight_bytes(self) -> int:
        """Memory of packed weights and constants."""
        packed = sum(call.operator.weight_bytes for call in self.walk() if isinstance(call, Call) and call.operator)
        return packed + sum(array.nbytes for array in self.constants.values())


def build_plan(program: Program, fallback: HostFallback, make_node: MakeNode) -> Plan:
    """Check that every operator exists, then prepare every node.

    :raises UnsupportedOperatorError: names all that are missing.
    """
    answers: dict[tuple[str, str, int], str] = {}
    missing = []
    for instruction in program.walk():
        key = (instruction.domain, instruction.operator, instruction.version)
        if key not in answers:
            answers[key] = _reason_missing(instruction, fallback)
        if answers[key]:
            missing.append(f"{instruction.title} ({answers[key]})")
    if missing:
        raise UnsupportedOperatorError(
            f"{len(missing)} node(s) use operators that neither the cpu backend nor its host fallback has: "
            + ", ".join(missing),
            remedy="export with standard ONNX operators, or install a plugin whose host fallback has them",
        )
    return _prepare(program, fallback, make_node)


def _reason_missing(instruction: Instruction, fallback: HostFallback) -> str:
    if instruction.domain == "" and instruction.operator in CONTROL_FLOW:
        return ""
    answer = fallback.supports(instruction.domain, instruction.operator, instruction.version)
    if answer or preparation_of(instruction) is not None:
        return ""
    return answer.reason if isinstance(answer, Declined) else ""


def _prepare(program: Program, fallback: HostFallback, make_node: MakeNode) -> Plan:
    calls: list[Call | Branching] = []
    for instruction in program.instructions:
        if instruction.domain == "" and instruction.operator in CONTROL_FLOW:
            bodies = {name: _prepare(body, fallback, make_node) for name, body in instruction.bodies.items()}
            calls.append(Branching(instruction, bodies))
        else:
            calls.append(_call(instruction, program, fallback, make_node))
    return Plan(program, tuple(calls), _kept_constants(program, calls))


def _call(instruction: Instruction, program: Program, fallback: HostFallback, make_node: MakeNode) -> Call:
    prepare = preparation_of(instruction)
    if prepare is None:
        return Call(program, instruction, None, fallback)
    operator = prepare(make_node(instruction, program))
    if isinstance(operator, Declined):
        return Call(program, instruction, None, fallback, declined=operator.reason)
    return Call(program, instruction, operator, fallback)


def _kept_constants(program: Program, calls: Sequence[Call | Branching]) -> dict[int, Any]:
    """Constants that a run reads: without weights of which every reader keeps a packed copy."""
    packed: set[int] = set()
    read: set[int] = set(program.outputs) | set(program.inputs)
    for call in calls:
        inputs = call.instruction.inputs
        owned = call.operator.packs if isinstance(call, Call) and call.operator is not None else ()
        packed.update(slot for index, slot in enumerate(inputs) if index in owned and slot is not None)
        read.update(slot for index, slot in enumerate(inputs) if index not in owned and slot is not None)
        for body in call.instruction.bodies.values():
            read.update(outer for outer, _ in body.captures)
    return {
        slot: _read_only(program.constant(slot)) for slot in program.constants if slot in read or slot not in packed
    }


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    view = array.view()
    view.flags.writeable = False
    return view
