from __future__ import annotations

from tokenmill.contracts.descriptors import BackendDescriptor
from tokenmill.hooks.markers import hookimpl

TOKENMILL_API = (1, 0)


@hookimpl
def tokenmill_backends() -> list[BackendDescriptor]:
    return [
        BackendDescriptor(
            name="reference",
            summary="would like to be built in",
            factory="mill_impostor.plugin:nothing",
            priority=10_000,
        )
    ]
