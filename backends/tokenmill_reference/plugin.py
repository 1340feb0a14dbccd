"""Announces the numpy backend and the host operators that it offers to every other backend."""

from __future__ import annotations

from tokenmill.contracts.descriptors import BackendDescriptor
from tokenmill.hooks.markers import hookimpl

TOKENMILL_API = (1, 0)


@hookimpl
def tokenmill_backends() -> list[BackendDescriptor]:
    return [
        BackendDescriptor(
            name="reference",
            summary="numpy and onnx.reference: every ONNX operator, small, slow and right",
            factory="tokenmill_reference.backend:create",
            host_fallback="tokenmill_reference.fallback:create",
            capabilities=("any_graph", "control_flow", "sequences", "strings"),
            priority=0,
        )
    ]
