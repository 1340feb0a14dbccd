"""One node of a plan: an operator, the host's, or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field
from tokenmill.contracts.fallback import HostFallback, HostOperator
from tokenmill.errors import OperatorError, TokenmillError
from tokenmill.model.host_values import describe
from tokenmill.model.program import Instruction, Program

from tokenmill_cpu.frame import Frame
from tokenmill_cpu.operators.operator import Operator


@define(eq=False)
class Call:
    """Our operator, the host's, or ours with the host's for inputs that ours does not take.

    :param declined: why there is none of ours.
    """

    program: Program
    instruction: Instruction
    operator: Operator | None
    fallback: HostFallback
    declined: str = ""
    _host: HostOperator | None = field(default=None, init=False)
    _unpacked: dict[int, Any] = field(factory=dict, init=False)

    @property
    def reads(self) -> tuple[int | None, ...]:
        """Slots of what `run` is given: none where the operator holds a packed copy."""
        return tuple(None if index in self.packs else slot for index, slot in enumerate(self.instruction.inputs))

    @property
    def packs(self) -> frozenset[int]:
        """Inputs that `run` does not read."""
        return frozenset() if self.operator is None else self.operator.packs

    @property
    def runs_on(self) -> str:
        return "host fallback" if self.operator is None else "cpu"

    def bind_host(self) -> None:
        """Prepare the host's operator: now when there is no other, else once it is needed.

        :raises UnsupportedOperatorError: the host has none either.
        :raises ModelError: attributes that the operator does not take.
        """
        self._unpacked = self._constants()
        self._host = self.fallback.bind(self.instruction)

    @property
    def queues(self) -> bool:
        """See `Operator.queues`."""
        return self.operator is not None and self.operator.queues

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        """:raises OperatorError: inputs that the operator cannot take."""
        try:
            if self.operator is not None:
                results = self.operator.run(frame, inputs)
                if results is not NotImplemented:
                    return results
            return self._run_on_host(frame, inputs)
        except TokenmillError:
            raise
        except Exception as error:
            raise refusal(self.instruction, self._filled(inputs, self._constants()), error) from error

    def _run_on_host(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        frame.finish()
        if self._host is None:
            self.bind_host()
        assert self._host is not None
        frame.note_host_call(self.instruction)
        return self._host(self._filled(inputs, self._unpacked) if self._unpacked else inputs)

    def _constants(self) -> dict[int, Any]:
        """Inputs that were packed, as the host takes them."""
        slots = {index: self.instruction.inputs[index] for index in self.packs}
        return {index: self.program.constant(slot) for index, slot in slots.items() if slot is not None}

    @staticmethod
    def _filled(inputs: Sequence[Any], constants: Mapping[int, Any]) -> Sequence[Any]:
        return [constants.get(index, value) for index, value in enumerate(inputs)]


def refusal(instruction: Instruction, inputs: Sequence[Any], error: Exception) -> OperatorError:
    """What a node could not take, with shapes and types in place of the values."""
    given = ", ".join(map(describe, inputs)) or "no inputs"
    return OperatorError(f"{instruction.title} cannot take {given}", why=f"{type(error).__name__}: {error}")
