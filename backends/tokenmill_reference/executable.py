"""A graph bound to numpy callables."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define
from tokenmill.contracts.answers import Answer, Declined
from tokenmill.contracts.backend import OperatorUse
from tokenmill.model.graph import OnnxGraph
from tokenmill.model.roles import PortPair
from tokenmill.trace import NO_TRACE, Tracer

from tokenmill_reference.context import ReferenceContext
from tokenmill_reference.plan import Plan


@define(eq=False)
class ReferenceExecutable:
    """Immutable; any number of contexts and threads share it.

    `row_invariant_rows` is 1: numpy's matmul takes other kernels, with other orders of summation, for other row counts.
    """

    graph: OnnxGraph
    plan: Plan

    device = "cpu"
    preferred_rows = 512
    row_invariant_rows = 1

    @property
    def weight_bytes(self) -> int:
        return self.plan.constant_bytes

    def appends_in_place(self, pair: PortPair) -> Answer:
        return Declined(
            f"the reference backend computes '{pair.present}' as a new array and never appends to '{pair.past}'",
            "use the strategy 'copied', or another backend",
        )

    def tolerates_capacity(self, port: str) -> Answer:
        return Declined(f"the reference backend reads '{port}' at its logical length only", "use another backend")

    def operators(self) -> Sequence[OperatorUse]:
        return [
            OperatorUse(use.name, use.operator, use.domain, use.version, "reference")
            for use in self.graph.program.walk()
        ]

    def open(self, tracer: Tracer = NO_TRACE) -> ReferenceContext:
        """A context; the session around it traces its runs."""
        return ReferenceContext(self.graph, self.plan)

    def close(self) -> None:
        """Nothing to release: the arrays go with the object."""
