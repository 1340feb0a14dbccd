"""A plugin in order: a backend with options, and a trace sink."""

from __future__ import annotations

from tokenmill.contracts.descriptors import BackendDescriptor, TraceSinkDescriptor
from tokenmill.hooks.markers import hookimpl

TOKENMILL_API = (1, 0)


@hookimpl
def tokenmill_backends() -> list[BackendDescriptor]:
    return [
        BackendDescriptor(
            name="good",
            summary="declines with its own options as the reason",
            factory="mill_good.backend:GoodBackend",
            options="mill_good.options:GoodOptions",
            capabilities=("any_graph",),
            priority=500,
        )
    ]


@hookimpl
def tokenmill_trace_sinks() -> list[TraceSinkDescriptor]:
    return [TraceSinkDescriptor(name="nowhere", summary="keeps nothing", factory="mill_good.missing:Sink")]
