from __future__ import annotations

from tokenmill.contracts.descriptors import BackendDescriptor
from tokenmill.hooks.markers import hookimpl

TOKENMILL_API = (1, 0)


@hookimpl
def tokenmill_backends() -> list[BackendDescriptor]:
    return [BackendDescriptor(name="twin", summary="there are two of it", factory="mill_twin_one.plugin:nothing")]
