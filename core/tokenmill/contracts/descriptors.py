"""What a registration hook returns: enough to list and choose, nothing that has to be imported."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen
from attrs.validators import matches_re

_ATTRIBUTE = r"[\w.]+:\w+"


@frozen(kw_only=True)
class Descriptor:
    """One thing that a plugin contributes.

    :param name: what configuration calls it: lower case, digits, `-` and `_`.
    :param summary: one line.
    :param factory: `module:attribute`, imported when it is chosen.
    :param options: `module:attribute` of an attrs class with its options; None takes none.
    :param capabilities: declared names; the conformance kit checks that a declared one works and an undeclared one does not.
    :param priority: `auto` asks higher ones first; equal ones by name. Installation order never matters.
    """

    name: str = field(validator=matches_re(r"[a-z][a-z0-9_-]*"))
    summary: str
    factory: str = field(validator=matches_re(_ATTRIBUTE))
    options: str | None = None
    capabilities: tuple[str, ...] = ()
    priority: int = 0
    metadata: dict[str, Any] = field(factory=dict)


@frozen(kw_only=True)
class BackendDescriptor(Descriptor):
    """`factory(options, fallback) -> Backend`.

    :param host_fallback: `module:attribute` of a `HostFallback` factory (no arguments) that it offers to all backends.
    """

    host_fallback: str | None = None


@frozen(kw_only=True)
class CacheStrategyDescriptor(Descriptor):
    """`factory(options) -> CacheStrategy`."""


@frozen(kw_only=True)
class CapturePolicyDescriptor(Descriptor):
    """`factory(options) -> CapturePolicy`."""


@frozen(kw_only=True)
class StepRouterDescriptor(Descriptor):
    """`factory(options) -> StepRouter`."""


@frozen(kw_only=True)
class ProposerDescriptor(Descriptor):
    """`factory(options) -> Proposer`."""


@frozen(kw_only=True)
class ModelSourceDescriptor(Descriptor):
    """`factory(options) -> ModelSource`."""


@frozen(kw_only=True)
class LogitProcessorDescriptor(Descriptor):
    """`factory(settings: GenerationSettings, vocabulary: int) -> LogitProcessor | None`; None when the settings leave it idle."""


@frozen(kw_only=True)
class TraceSinkDescriptor(Descriptor):
    """`factory(options) -> TraceSink`."""
