"""`tokenmill.compile`: any ONNX graph on any backend, by names of inputs and outputs."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tokenmill.errors import KernelError, SessionClosedError

if TYPE_CHECKING:
    import onnx

    from tokenmill.contracts.backend import Backend, Context, Executable, OperatorUse
    from tokenmill.model.graph import OnnxGraph, Port


class CompiledGraph:
    """A graph ready to run. Calls from several threads are run one after the other.

    Use it as a context manager, or call `close()`, to give its memory back early.
    """

    def __init__(self, executable: Executable, reasons: Sequence[str] = ()) -> None:
        self._executable = executable
        self._reasons = tuple(reasons)
        self._context: Context | None = executable.open()
        self._turn = threading.Lock()

    @property
    def inputs(self) -> tuple[Port, ...]:
        return self._executable.graph.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        return self._executable.graph.outputs

    def run(self, feeds: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Any]:
        """Run the graph once.

        :param feeds: values by input name, or as keywords: arrays of the port's type (strings as `object` or `str`
            arrays), lists of arrays for sequences, None for an absent optional. Other Python values are converted.
        :returns: every output by name: arrays (strings as `object`), lists, None. They belong to the caller.
        :raises PortError: a missing or unknown name, a wrong type, rank or static extent.
        :raises OperatorError: values that an operator cannot take; names the node.
        :raises KernelError: values that a kernel found it cannot take.
        """
        with self._turn:
            if self._context is None:
                raise SessionClosedError("this graph was closed", remedy="compile it again")
            try:
                results = self._context.run({**(feeds or {}), **named})
            finally:
                flags = self._context.take_error()
            if flags:
                raise KernelError(
                    f"a kernel reported the error flags {flags:#x}",
                    why="it met a value that it cannot take, such as an index out of range",
                    remedy="check the inputs; the backend 'reference' names the operator",
                )
            return {name: _owned(value.numpy()) for name, value in results.items()}

    def operators(self) -> Sequence[OperatorUse]:
        """Every node with where it runs, those of subgraphs included."""
        return self._executable.operators()

    def explain(self) -> str:
        """Which backend was chosen and why, and how many nodes of each operator run where."""
        counts: dict[tuple[str, str], int] = {}
        for use in self.operators():
            name = f"{use.domain}::{use.operator}" if use.domain else use.operator
            counts[use.runs_on, name] = counts.get((use.runs_on, name), 0) + 1
        lines = [*self._reasons, f"runs on {self._executable.device}, weights {self._executable.weight_bytes:,} bytes"]
        lines += [f"{where}: {name} x {count}" for (where, name), count in sorted(counts.items())]
        return "\n".join(lines)

    def close(self) -> None:
        """Release context and executable. Closing twice is harmless."""
        with self._turn:
            if self._context is not None:
                self._context.close()
                self._executable.close()
                self._context = None

    def __enter__(self) -> CompiledGraph:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def compile(model: str | Path | bytes | onnx.ModelProto, backend: str = "auto", **options: Any) -> CompiledGraph:
    """Compile any ONNX graph.

    :param model: a path, the bytes of a file, or a model in memory.
    :param backend: a backend's name, or `auto` for the configured one, else the first that accepts.
    :param options: the backend's own options, over the configured ones.
    :raises ModelError: a file or graph that cannot be used.
    :raises UnsupportedOperatorError: names every operator that is missing.
    :raises PluginError: a backend that is unknown, broken, or declined.
    :raises ConfigError: options that the backend does not have.
    """
    from tokenmill.assembly import select_backend
    from tokenmill.model.loading import open_graph

    graph = open_graph(model)
    chosen, decision = select_backend(None if backend == "auto" else backend, options)
    return compile_graph(graph, chosen, decision.lines())


def compile_graph(graph: OnnxGraph, backend: Backend, reasons: Sequence[str] = ()) -> CompiledGraph:
    """Compile an opened graph on a backend that was chosen already."""
    return CompiledGraph(backend.compile(graph), reasons)


def _owned(value: Any) -> Any:
    import numpy as np  # here: what imports tokenmill need not load it

    if isinstance(value, np.ndarray):
        return value.copy()
    return [_owned(item) for item in value] if isinstance(value, (list, tuple)) else value
