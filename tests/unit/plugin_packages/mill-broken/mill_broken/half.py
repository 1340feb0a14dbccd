"""One hook raises, one returns no list, one lists a stranger, and one is right."""

from __future__ import annotations

from tokenmill.contracts.descriptors import BackendDescriptor, ProposerDescriptor
from tokenmill.hooks.markers import hookimpl

TOKENMILL_API = (1, 0)


@hookimpl
def tokenmill_backends():
    raise ValueError("no device list")


@hookimpl
def tokenmill_model_sources():
    return {"name": "half"}


@hookimpl
def tokenmill_step_routers():
    return [BackendDescriptor(name="half", summary="a stranger in this list", factory="mill_broken.half:nothing")]


@hookimpl
def tokenmill_proposers() -> list[ProposerDescriptor]:
    return [ProposerDescriptor(name="survivor", summary="comes through", factory="mill_broken.half:nothing")]
