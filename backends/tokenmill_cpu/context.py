"""One session's side of a graph: bound storage, and the eager run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenmill.contracts.backend import Binding, CaptureDecline, CaptureReport, ContextStats, HostValue
from tokenmill.contracts.step import Step
from tokenmill.errors import ExecutionError, SessionClosedError
from tokenmill.model.feeds import check_feeds
from tokenmill.model.graph import OnnxGraph
from tokenmill.model.growth import sequence_axis
from tokenmill.model.host_values import HostOutput
from tokenmill.model.roles import PortPair
from tokenmill.trace import NO_TRACE, Tracer

from tokenmill_cpu.binding import PortBinding
from tokenmill_cpu.frame import Frame
from tokenmill_cpu.plan import UNFED, Plan
from tokenmill_cpu.pool import DecodePool
from tokenmill_cpu.stretches import RecordedStretch

#: Rows up to which a step is recorded when it repeats, and recordings that may turn out not to fit the next step.
_FEW_ROWS = 8
_MISFITS = 3


class CpuContext:
    """Runs a plan. Used by one thread at a time."""

    def __init__(self, graph: OnnxGraph, plan: Plan, pool: DecodePool, threads: int, tracer: Tracer = NO_TRACE) -> None:
        self._graph, self._plan = graph, plan
        self._frame = Frame(pool, threads, tracer)
        program = plan.program
        self._preset = {
            name for name, slot in zip(program.input_names, program.inputs, strict=True) if slot in plan.constants
        }
        self._inputs, self._outputs = program.input_names, program.output_names
        self._bindings: dict[str, PortBinding] = {}
        self._adopted: dict[str, PortBinding] = {}
        self._fed = graph.inputs
        self._recorded: dict[tuple[int, bool], list[RecordedStretch | None]] = {}
        self._last_key: tuple[int, bool] | None = None
        self._misfits = 0
        self._runs = 0
        self._closed = False

    def bind(self, pair: PortPair, shape: Sequence[int], dtype: np.dtype[Any]) -> Binding:
        """:raises ExecutionError: a pair that the graph lacks, or whose past does not grow."""
        past, present = self._graph.input(pair.past), self._graph.output(pair.present)
        axis = None if past is None else sequence_axis(past, present)
        if axis is None or axis >= len(shape):
            raise ExecutionError(
                f"'{pair.past}' cannot be bound as {list(shape)}",
                why="the graph has no such past, or it has no axis that grows",
                remedy="use the cache strategy 'copied'",
            )
        binding = self._bindings[pair.past] = PortBinding(pair, tuple(shape), dtype, axis)
        self._settle_feeds()
        return binding

    def adopt(self, binding: Binding, port: str) -> None:
        if not isinstance(binding, PortBinding):
            raise ExecutionError(f"port '{port}' cannot read a binding of another device")
        self._adopted[port] = binding
        self._settle_feeds()

    def unbind(self, pair: PortPair) -> None:
        self._bindings.pop(pair.past, None)
        self._settle_feeds()

    def _settle_feeds(self) -> None:
        self._recorded.clear()
        held = {*self._bindings, *self._adopted}
        self._fed = tuple(port for port in self._graph.inputs if port.name not in held)

    def run(self, feeds: Mapping[str, HostValue], step: Step | None = None) -> Mapping[str, HostOutput]:
        """Run the graph once. With `last` or `token` wanted, the logits may come with the last row alone.

        :raises PortError: a feed that is missing, unknown, or does not fit its port.
        :raises OperatorError: inputs that an operator cannot take.
        """
        if self._closed:
            raise SessionClosedError("this context was closed", remedy="open another one from the executable")
        values = check_feeds(self._fed, feeds, preset=self._preset)
        frame = self._frame
        frame.last_row_only = step is not None and step.want != "rows"
        frame.bound.clear()
        frame.remembered.clear()
        frame.drop()
        for port, binding in self._adopted.items():
            values[port] = binding.view(binding.logical_length)
        for port, binding in self._bindings.items():
            view = values[port] = binding.view(binding.logical_length)
            frame.bound[id(view)] = binding
        # Overflow, division by zero and NaN are results in ONNX, not warnings.
        with np.errstate(all="ignore"):
            results = self._results([values.get(name, UNFED) for name in self._inputs], step)
        outputs = dict(zip(self._outputs, map(HostOutput, results), strict=True))
        for binding in self._bindings.values():
            _keep(binding, outputs.pop(binding.pair.present).numpy())
        self._runs += 1
        return outputs

    def _results(self, arguments: list[Any], step: Step | None) -> list[Any]:
        """Run the plan. A step of few rows that follows one like it is recorded, and then replayed."""
        if step is None or step.rows > _FEW_ROWS or self._misfits > _MISFITS:
            return self._plan.run(self._frame, arguments)
        key = (step.rows, self._frame.last_row_only)
        repeats, self._last_key = key == self._last_key, key
        recorded = self._recorded.get(key)
        if recorded is not None:
            results = self._plan.replay(self._frame, arguments, recorded)
            if results is not None:
                storages = [binding.storage for binding in self._bindings.values()]
                # A later replay writes into the same arrays: whoever reads them keeps them.
                return [value if any(value.base is s for s in storages) else np.array(value) for value in results]
            del self._recorded[key]
            self._misfits += 1
            self._frame.drop()
        if not repeats:
            return self._plan.run(self._frame, arguments)
        results, self._recorded[key] = self._plan.record(self._frame, arguments)
        return results

    def record(self, feeds: Mapping[str, HostValue], step: Step) -> CaptureReport:
        reason = "the cpu backend runs every step eagerly"
        return CaptureReport(reason, entries=(CaptureDecline(reason),))

    def take_error(self) -> int:
        return self._frame.take_error()

    def stats(self) -> ContextStats:
        return ContextStats(
            runs=self._runs,
            arena_bytes=self._frame.scratch_bytes,
            binding_bytes=sum(binding.nbytes for binding in self._bindings.values()),
            bindings={port: binding.address for port, binding in self._bindings.items()},
            host_fallbacks=self._frame.host_calls,
        )

    def close(self) -> None:
        self._closed = True
        self._bindings.clear()
        self._adopted.clear()


def _keep(binding: PortBinding, present: np.ndarray[Any, Any]) -> None:
    """A present that was computed elsewhere goes where the append would have put it."""
    if present.base is not binding.storage:
        length = present.shape[binding.axis]
        if length > binding.capacity:
            raise ExecutionError(
                f"'{binding.pair.present}' came with {length} entries", why=f"its storage holds {binding.capacity}"
            )
        binding.view(length)[...] = present
