"""One session's side of a graph in numpy: every value comes in as a feed and leaves as an output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenmill.contracts.backend import Binding, CaptureDecline, CaptureReport, ContextStats, HostValue
from tokenmill.contracts.step import Step
from tokenmill.errors import ExecutionError, SessionClosedError
from tokenmill.model.feeds import check_feeds
from tokenmill.model.graph import OnnxGraph
from tokenmill.model.host_values import HostOutput
from tokenmill.model.roles import PortPair

from tokenmill_reference.plan import UNFED, Plan


class ReferenceContext:
    """Runs a plan. Binds nothing, records nothing."""

    def __init__(self, graph: OnnxGraph, plan: Plan) -> None:
        self._graph, self._plan = graph, plan
        program = plan.program
        self._preset = {
            name for name, slot in zip(program.input_names, program.inputs, strict=True) if slot in plan.constants
        }
        self._runs = 0
        self._closed = False

    def bind(self, pair: PortPair, shape: Sequence[int], dtype: np.dtype[Any]) -> Binding:
        raise ExecutionError(
            f"cannot bind '{pair.past}' and '{pair.present}'",
            why="the reference backend does not append in place",
            remedy="use the cache strategy 'copied' with this backend",
        )

    def adopt(self, binding: Binding, port: str) -> None:
        raise ExecutionError(
            f"port '{port}' cannot read another context's binding",
            why="the reference backend has no bindings",
            remedy="feed the lent cache as an array",
        )

    def unbind(self, pair: PortPair) -> None:
        """There is never anything bound."""

    def run(self, feeds: Mapping[str, HostValue], step: Step | None = None) -> Mapping[str, HostOutput]:
        """Run the whole graph. Every row of the logits is computed, whatever the step wants of them.

        :raises PortError: a feed that is missing, unknown, or does not fit its port.
        :raises OperatorError: inputs that an operator cannot take.
        """
        if self._closed:
            raise SessionClosedError("this context was closed", remedy="open another one from the executable")
        checked = check_feeds(self._graph.inputs, feeds, preset=self._preset)
        arguments = [checked.get(name, UNFED) for name in self._plan.program.input_names]
        # Overflow, division by zero and NaN are results in ONNX, not warnings.
        with np.errstate(all="ignore"):
            results = self._plan.run(arguments)
        self._runs += 1
        return {name: HostOutput(value) for name, value in zip(self._plan.program.output_names, results, strict=True)}

    def record(self, feeds: Mapping[str, HostValue], step: Step) -> CaptureReport:
        reason = "the reference backend has no launches to record"
        return CaptureReport(reason, "use another backend", (CaptureDecline(reason),))

    def take_error(self) -> int:
        return 0

    def stats(self) -> ContextStats:
        return ContextStats(runs=self._runs)

    def close(self) -> None:
        self._closed = True
