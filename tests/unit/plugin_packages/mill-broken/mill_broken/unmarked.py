from __future__ import annotations

from tokenmill.contracts.descriptors import BackendDescriptor

TOKENMILL_API = (1, 0)


def tokenmill_backends() -> list[BackendDescriptor]:
    return []
