"""What a step tells its tracer."""

from __future__ import annotations

from attrs import define, field
from counting import POISON, Counting, open_session
from tokenmill.errors import NonFiniteError
from tokenmill.trace import NO_TRACE, TraceEvent, Tracer


@define
class Sink:
    events: list[TraceEvent] = field(factory=list)

    def emit(self, event: TraceEvent) -> None:
        self.events.append(event)

    def close(self) -> None: ...

    def names(self) -> list[str]:
        """In the order of their beginning, and emptied."""
        found = [event.name for event in sorted(self.events, key=lambda event: event.start_ns)]
        self.events.clear()
        return found


PARTS = ["prepare", "run", "fetch", "kv_update"]


def test_every_step_has_a_span_around_its_parts() -> None:
    sink = Sink()
    with open_session(Counting().graph(), tracer=Tracer(sink)) as session:
        sink.events.clear()
        session.decode([1, 2], 0)
        outer, *parts = sorted(sink.events, key=lambda event: event.start_ns)
        assert outer.name == "step" and dict(outer.arguments) == {"rows": 2, "past": 0}
        assert [part.name for part in parts] == PARTS
        assert dict(parts[1].arguments) == {"kind": "prefill", "rows": 2, "past": 0}
        assert all(part.duration_ns is not None and part.duration_ns >= 0 for part in parts)
        ends = [part.start_ns + (part.duration_ns or 0) for part in parts]
        assert all(end <= after.start_ns for end, after in zip(ends, parts[1:], strict=False))
        assert outer.duration_ns is not None and ends[-1] <= outer.start_ns + outer.duration_ns
        sink.events.clear()
        session.verify([3], 2)
        assert sink.names() == ["verify", *PARTS]
        session.decode([1] * 600, 3, want="last")
        assert sink.names() == ["step", *PARTS, *PARTS]


def test_a_failed_step_ends_its_spans() -> None:
    sink = Sink()
    with open_session(Counting().graph(), tracer=Tracer(sink)) as session:
        sink.events.clear()
        try:
            session.decode([POISON], 0)
        except NonFiniteError:
            assert sink.names() == ["step", "prepare", "run", "fetch"]


def test_without_a_sink_a_span_is_one_shared_object() -> None:
    assert NO_TRACE.span("step", rows=1) is NO_TRACE.span("run")
