"""A program with every node prepared, and the walk over its calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from attrs import field, frozen
from tokenmill.errors import TokenmillError
from tokenmill.model.control_flow import CONTROL_FLOW, Body
from tokenmill.model.program import Instruction, Program

from tokenmill_cpu.call import Call, refusal
from tokenmill_cpu.frame import Frame, address_of
from tokenmill_cpu.stretches import Line, RecordedStretch, Section, Stretch

UNFED = object()


@frozen(eq=False)
class Branching:
    """A node with bodies, each a plan of its own, that run in the frame of the whole."""

    instruction: Instruction
    bodies: Mapping[str, Plan]
    _operator: Callable[[Sequence[Any], dict[str, list[Any]]], Sequence[Any]] = field(init=False)

    runs_on = "cpu"
    queues = False

    @_operator.default
    def _bound(self) -> Callable[[Sequence[Any], dict[str, list[Any]]], Sequence[Any]]:
        # What a body captures comes behind the frame of the run, so that the operator is bound once for all runs.
        bodies = {
            name: Body(
                lambda arguments, held, plan=plan: plan.run(held[0], arguments, held[1:]),  # type: ignore[misc]
                plan.program.input_names,
                plan.program.output_names,
            )
            for name, plan in self.bodies.items()
        }
        return CONTROL_FLOW[self.instruction.operator](self.instruction, bodies)

    @property
    def reads(self) -> tuple[int | None, ...]:
        """Slots of what `run` is given: the inputs, then what each body captures."""
        captured = (outer for plan in self.bodies.values() for outer, _ in plan.program.captures)
        return (*self.instruction.inputs, *captured)

    def run(self, frame: Frame, values: Sequence[Any]) -> Sequence[Any]:
        start = len(self.instruction.inputs)
        inputs, captured = values[:start], {}
        for name, plan in self.bodies.items():
            end = start + len(plan.program.captures)
            captured[name] = [frame, *values[start:end]]
            start = end
        try:
            return self._operator(inputs, captured)
        except TokenmillError:
            raise
        except Exception as error:
            raise refusal(self.instruction, inputs, error) from error


@frozen(eq=False)
class Plan:
    """A prepared program. Holds no state of a run: threads share it.

    :param constants: read-only arrays by slot, without those that only packed weights were made of.
    """

    program: Program
    calls: tuple[Call | Branching, ...]
    constants: Mapping[int, Any]
    _slots: list[Any] = field(init=False)
    _lines: tuple[Line, ...] = field(init=False)
    _sections: tuple[Section, ...] = field(init=False)

    @_slots.default
    def _first_slots(self) -> list[Any]:
        """The slots of a run before it: behind the program's own, one that stays None and one that nobody reads."""
        slots = [None] * (len(self.program.slot_names) + 2)
        for slot, array in self.constants.items():
            slots[slot] = array
        return slots

    @_lines.default
    def _resolved(self) -> tuple[Line, ...]:
        nothing = len(self.program.slot_names)
        nowhere = nothing + 1
        return tuple(
            (
                call.run,
                _reader([nothing if slot is None else slot for slot in call.reads]),
                tuple(nowhere if slot is None else slot for slot in call.instruction.outputs),
                frees,
                call.queues,
            )
            for call, frees in zip(self.calls, self._frees(), strict=True)
        )

    @_sections.default
    def _split(self) -> tuple[Section, ...]:
        """Stretches, each with the calls before it."""
        sections, others, index = [], 0, 0
        while index < len(self.calls):
            end = index
            while end < len(self.calls) and self.calls[end].queues:
                end += 1
            if end > index:
                sections.append(Section(self._lines[others:index], self._stretch(index, end)))
                others = index = end
            else:
                index += 1
        return (*sections, Section(self._lines[others:], self._stretch(index, index)))

    def _stretch(self, start: int, end: int) -> Stretch:
        inside, behind = self.calls[start:end], self.calls[end:]
        written = {slot for call in inside for slot in call.instruction.outputs if slot is not None}
        read = {slot for call in inside for slot in call.reads if slot is not None}
        passed = written & {slot for call in behind for slot in call.reads}
        given = written & set(self.program.outputs)
        return Stretch(
            self._lines[start:end], tuple(read - written - self.constants.keys()), tuple(passed), tuple(passed | given)
        )

    def _frees(self) -> list[tuple[int, ...]]:
        """The slots that nobody reads after each call."""
        last: dict[int, int] = {}
        for index, call in enumerate(self.calls):
            last.update((slot, index) for slot in (*call.reads, *call.instruction.outputs) if slot is not None)
        frees: list[list[int]] = [[] for _ in self.calls]
        for slot in last.keys() - {*self.program.outputs, *self.constants}:
            frees[last[slot]].append(slot)
        return [tuple(slots) for slots in frees]

    def run(self, frame: Frame, arguments: Sequence[Any], captured: Sequence[Any] = ()) -> list[Any]:
        """Run from inputs, by position, to outputs.

        :param arguments: `UNFED` leaves an input at its initializer.
        :param captured: values of `program.captures`, in that order.
        :raises OperatorError: inputs that an operator cannot take.
        """
        slots = self._filled(arguments)
        for (_, slot), value in zip(self.program.captures, captured, strict=True):
            slots[slot] = value
        self._walk(self._lines, frame, slots)
        frame.finish()
        frame.queueing = False
        return [slots[slot] for slot in self.program.outputs]

    def _filled(self, arguments: Sequence[Any]) -> list[Any]:
        slots = self._slots.copy()
        for slot, value in zip(self.program.inputs, arguments, strict=True):
            if value is not UNFED:
                slots[slot] = value
        return slots

    @staticmethod
    def _walk(lines: Sequence[Line], frame: Frame, slots: list[Any]) -> None:
        for run, read, writes, frees, queues in lines:
            if queues is not frame.queueing:
                frame.finish()
                frame.queueing = queues
            for slot, result in zip(writes, run(frame, read(slots)), strict=False):
                slots[slot] = result
            for slot in frees:
                slots[slot] = None

    def record(self, frame: Frame, arguments: Sequence[Any]) -> tuple[list[Any], list[RecordedStretch | None]]:
        """As `run`; gives also what `replay` takes, None for a stretch whose launches cannot be replayed."""
        slots, recorded = self._filled(arguments), []
        for section in self._sections:
            self._walk(section.before, frame, slots)
            recorded.append(section.stretch.record(lambda lines: self._walk(lines, frame, slots), frame, slots))
        frame.finish()
        frame.queueing = False
        return [slots[slot] for slot in self.program.outputs], recorded

    def replay(
        self, frame: Frame, arguments: Sequence[Any], recorded: Sequence[RecordedStretch | None]
    ) -> list[Any] | None:
        """As `run`, with recorded launches; None when the values do not fit them. Outputs may be written again later."""
        slots = self._filled(arguments)
        for section, known in zip(self._sections, recorded, strict=True):
            self._walk(section.before, frame, slots)
            if known is None:
                self._walk(section.stretch.lines, frame, slots)
            elif not known.replay(frame, slots):
                return None
        frame.finish()
        frame.queueing = False
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
        """Memory of packed weights and constants. What two bodies share counts once."""
        packed = sum(call.operator.weight_bytes for call in self.walk() if isinstance(call, Call) and call.operator)
        return packed + sum(self._constant_bytes().values())

    def _constant_bytes(self) -> dict[int, int]:
        """Bytes by address."""
        counted = {address_of(array): array.nbytes for array in self.constants.values()}
        for call in self.calls:
            if isinstance(call, Branching):
                for body in call.bodies.values():
                    counted.update(body._constant_bytes())
        return counted


def _reader(places: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """Always gives a sequence, where `itemgetter` gives the item itself for a single place."""
    if len(places) > 1:
        return itemgetter(*places)
    if not places:
        return lambda slots: ()
    (place,) = places
    return lambda slots: (slots[place],)
