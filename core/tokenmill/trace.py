"""Spans and events of what ran, when, and why something was declined.

The default tracer is `NO_TRACE`: it keeps nothing, and code that would build arguments for it asks `enabled` first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from attrs import field, frozen


@frozen
class TraceEvent:
    """One span (with a duration) or one event (without).

    :param name: `step`, `prepare`, `run`, `fetch`, `kv_update`, `verify`, `capture_rejected`, `fallback`, ...
    :param start_ns: `time.perf_counter_ns()` at its beginning.
    :param duration_ns: length of a span; `None` for an event.
    """

    name: str
    start_ns: int
    duration_ns: int | None
    arguments: Mapping[str, Any] = field(factory=dict)


class TraceSink(Protocol):
    """Receives finished spans and events. Contributed by the hook `tokenmill_trace_sinks`."""

    def emit(self, event: TraceEvent) -> None: ...

    def close(self) -> None: ...


class Tracer:
    """Sends spans and events to its sinks.

    :param sinks: receivers; a tracer without any is disabled and costs a call.
    """

    __slots__ = ("_sinks", "enabled")

    def __init__(self, *sinks: TraceSink) -> None:
        self._sinks = sinks
        self.enabled = bool(sinks)

    def span(self, name: str, **arguments: Any) -> AbstractContextManager[None]:
        return self._timed(name, arguments) if self.enabled else _NOTHING

    @contextmanager
    def _timed(self, name: str, arguments: Mapping[str, Any]) -> Iterator[None]:
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self._emit(TraceEvent(name, start, time.perf_counter_ns() - start, arguments))

    def event(self, name: str, **arguments: Any) -> None:
        if self.enabled:
            self._emit(TraceEvent(name, time.perf_counter_ns(), None, arguments))

    def _emit(self, event: TraceEvent) -> None:
        for sink in self._sinks:
            sink.emit(event)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


_NOTHING = nullcontext()
NO_TRACE = Tracer()
