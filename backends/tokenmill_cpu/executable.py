"""A graph with its packed weights and prepared operators."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define
from tokenmill.contracts.answers import Accepted, Answer, Declined
from tokenmill.contracts.backend import OperatorUse
from tokenmill.model.graph import OnnxGraph
from tokenmill.model.program import instruction_reads
from tokenmill.model.roles import PortPair
from tokenmill.trace import NO_TRACE, Tracer

from tokenmill_cpu.context import CpuContext
from tokenmill_cpu.plan import Call, Plan
from tokenmill_cpu.pool import DecodePool


@define(eq=False)
class CpuExecutable:
    """Immutable; any number of contexts and threads share it.

    :param threads: parts that a large launch is split into.
    :param level: instruction set of its kernels.
    """

    graph: OnnxGraph
    plan: Plan
    pool: DecodePool
    threads: int
    level: str

    device = "cpu"
    preferred_rows = 512
    row_invariant_rows = 8

    @property
    def weight_bytes(self) -> int:
        return self.plan.weight_bytes

    def appends_in_place(self, pair: PortPair) -> Answer:
        """Accepted when one operator appends to the past and every other reader looks at its shape alone."""
        program = self.plan.program
        if pair.past not in program.input_names or pair.present not in program.output_names:
            return Declined(f"the graph has no pair '{pair.past}', '{pair.present}'")
        past = program.inputs[program.input_names.index(pair.past)]
        present = program.outputs[program.output_names.index(pair.present)]
        appenders = 0
        for call in self.plan.calls:
            instruction = call.instruction
            if past not in instruction_reads(instruction):
                continue
            operator = call.operator if isinstance(call, Call) else None
            if operator is None:
                return Declined(f"{instruction.title} reads '{pair.past}' and does not append in place")
            for position in (index for index, slot in enumerate(instruction.inputs) if slot == past):
                if position in operator.reads_shape:
                    continue
                output = operator.appends.get(position)
                if output is None or output >= len(instruction.outputs) or instruction.outputs[output] != present:
                    return Declined(f"{instruction.title} reads '{pair.past}' and does not write '{pair.present}'")
                appenders += 1
        if past in program.outputs:
            return Declined(f"'{pair.past}' is an output itself")
        if appenders != 1:
            return Declined(f"{appenders} operators append to '{pair.past}'", "it takes exactly one")
        return Accepted("one append-aware operator owns past and present")

    def tolerates_capacity(self, port: str) -> Answer:
        return Declined(
            f"'{port}' is read at its logical length", "nothing to change: launches here take lengths as values"
        )

    def operators(self) -> Sequence[OperatorUse]:
        return [
            OperatorUse(use.name, use.operator, use.domain, use.version, call.runs_on)
            for call in self.plan.walk()
            for use in [call.instruction]
        ]

    def open(self, tracer: Tracer = NO_TRACE) -> CpuContext:
        return CpuContext(self.graph, self.plan, self.pool, self.threads)

    def close(self) -> None:
        """Nothing to release: the arrays go with the object."""
