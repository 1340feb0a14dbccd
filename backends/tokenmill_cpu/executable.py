"""A graph with its packed weights and prepared operators."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define
from tokenmill.contracts.answers import Answer, Declined
from tokenmill.contracts.backend import OperatorUse
from tokenmill.model.graph import OnnxGraph
from tokenmill.model.roles import PortPair
from tokenmill.trace import NO_TRACE, Tracer

from tokenmill_cpu.appending import append_answer
from tokenmill_cpu.context import CpuContext
from tokenmill_cpu.plan import Plan
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
        return append_answer(self.graph, self.plan, pair)

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
        return CpuContext(self.graph, self.plan, self.pool, self.threads, tracer)

    def close(self) -> None:
        """Nothing to release: the arrays go with the object."""
