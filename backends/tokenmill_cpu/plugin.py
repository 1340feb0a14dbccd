"""Announces the numba backend."""

from __future__ import annotations

from tokenmill.contracts.descriptors import BackendDescriptor
from tokenmill.hooks.markers import hookimpl

TOKENMILL_API = (1, 0)


@hookimpl
def tokenmill_backends() -> list[BackendDescriptor]:
    return [
        BackendDescriptor(
            name="cpu",
            summary="numba kernels with explicit SIMD, in-place KV append and a decode pool; other operators on the host",
            factory="tokenmill_cpu.backend:create",
            options="tokenmill_cpu.options:CpuOptions",
            capabilities=("any_graph", "control_flow", "in_place_kv", "row_invariant"),
            priority=10,
        )
    ]
