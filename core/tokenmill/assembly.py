"""Configuration to chosen plugins to a session, with every choice and its reason.

Everything that a plugin decides is asked here, once; the token loop holds the objects that came of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from tokenmill.config import Config, load_config
from tokenmill.contracts.answers import Accepted, Answer
from tokenmill.contracts.backend import Backend, Executable
from tokenmill.contracts.cache import CacheGroup, CacheStrategy
from tokenmill.contracts.descriptors import (
    BackendDescriptor,
    CacheStrategyDescriptor,
    CapturePolicyDescriptor,
    ModelSourceDescriptor,
    ProposerDescriptor,
    TraceSinkDescriptor,
)
from tokenmill.contracts.routing import StepRouter
from tokenmill.contracts.sourcing import NoProgress, Progress
from tokenmill.decisions import Decision
from tokenmill.errors import ConfigError
from tokenmill.hooks.registry import Registry, default_registry
from tokenmill.model.decoder import Decoder
from tokenmill.references import resolve_model, trace_reference
from tokenmill.selection import check_option_tables, make_routers, make_tracer, select_backend, select_strategies
from tokenmill.settings import Origin
from tokenmill.trace import NO_TRACE, Tracer

if TYPE_CHECKING:
    from tokenmill.session import Session

__all__ = [
    "DEFAULT_CAPACITY",
    "Assembly",
    "Opened",
    "assemble",
    "cache_bytes",
    "open_model",
    "resolve_model",
    "select_backend",
]

#: Tokens that a cache holds when nothing says otherwise, unless the model's context is shorter.
DEFAULT_CAPACITY = 4096

_KINDS_WITH_OPTIONS = {
    "model": ModelSourceDescriptor,
    "backend": BackendDescriptor,
    "cache": CacheStrategyDescriptor,
    "capture": CapturePolicyDescriptor,
    "speculative": ProposerDescriptor,
    "trace": TraceSinkDescriptor,
}


@frozen(eq=False, kw_only=True)
class Opened:
    """A model that was found and read, before a device is chosen.

    :param config: with the model's own metadata under it.
    :param capacity: tokens that a session may hold.
    """

    reference: str
    path: Path
    decoder: Decoder
    groups: tuple[CacheGroup, ...]
    capacity: int
    config: Config
    registry: Registry
    decisions: tuple[Decision, ...]


@frozen(eq=False, kw_only=True)
class Assembly:
    """A compiled model with its chosen plugins. Any number of sessions and threads share it."""

    opened: Opened
    decoder: Decoder
    backend: Backend
    executable: Executable
    groups: tuple[tuple[CacheGroup, CacheStrategy], ...]
    routers: tuple[StepRouter, ...]
    decisions: tuple[Decision, ...]
    tracer: Tracer = field(default=NO_TRACE)

    @property
    def config(self) -> Config:
        return self.opened.config

    @property
    def registry(self) -> Registry:
        return self.opened.registry

    @property
    def path(self) -> Path:
        return self.opened.path

    @property
    def capacity(self) -> int:
        return self.opened.capacity

    def session(self) -> Session:
        """A new session: its own cache and bindings, the executable's weights."""
        from tokenmill.session import Session

        return Session(
            self.decoder, self.executable, self.groups, self.routers, capacity=self.capacity, tracer=self.tracer
        )

    def close(self) -> None:
        """Release the executable. Sessions have to be closed before."""
        self.executable.close()


def assemble(
    ref: str | os.PathLike[str] | None = None,
    config: Config | None = None,
    registry: Registry | None = None,
    progress: Progress | None = None,
    tracer: Tracer | None = None,
) -> Assembly:
    """Find, read and compile a model, and choose everything a session needs.

    :param ref: the model; None is `model.ref` of the configuration.
    :param config: None is what the environment says.
    :param registry: None is the installed plugins, without the disabled ones.
    :param tracer: None has the configured sinks.
    :raises SourceError: a reference that resolves to nothing.
    :raises ModelError: a model that cannot be used; nothing was kept.
    :raises PluginError: a plugin asked for by name that is missing, broken, disabled or declined.
    :raises ConfigError: options that a chosen plugin cannot use.
    """
    progress = progress or NoProgress()
    opened = open_model(ref, config, registry, progress)
    tracer = make_tracer(opened.config, opened.registry) if tracer is None else tracer
    backend, backend_decision = select_backend(registry=opened.registry, config=opened.config)
    routers, routers_decision = make_routers(opened.registry)
    with tracer.span("compile", backend=backend.name):
        executable = backend.compile(opened.decoder.graph, opened.decoder.io, progress)
    try:
        groups, cache_decisions = select_strategies(opened.groups, executable, opened.config, opened.registry)
    except BaseException:
        executable.close()
        raise
    return Assembly(
        opened=opened,
        decoder=opened.decoder,
        backend=backend,
        executable=executable,
        groups=groups,
        routers=routers,
        decisions=(*opened.decisions, backend_decision, *cache_decisions, routers_decision),
        tracer=tracer,
    )


def open_model(
    ref: str | os.PathLike[str] | None = None,
    config: Config | None = None,
    registry: Registry | None = None,
    progress: Progress | None = None,
) -> Opened:
    """Find and read a model, and check that weights and cache fit into memory, before anything is compiled."""
    config = load_config() if config is None else config
    registry = default_registry(config.plugins.disabled) if registry is None else registry
    _check_names(config, registry)
    origin = config.origin("model.ref") if ref is None else Origin("call", "call")
    reference = config.model.ref if ref is None else os.fspath(ref)
    if not reference:
        raise ConfigError("no model was named", remedy="pass a reference or set model.ref")
    path, source_decisions = trace_reference(reference, config, registry, progress, origin)
    # Names are settled; from here on the graph library is needed.
    from tokenmill.model.loading import load_decoder
    from tokenmill.model.memory import check_memory
    from tokenmill.session.groups import cache_groups

    decoder = load_decoder(path, io=dict(config.model.io) or None)
    config = config.with_model({"generation": generation_defaults(decoder.metadata.search)}, f"metadata of {path}")
    groups = cache_groups(decoder)
    capacity, capacity_decision = _capacity(config, decoder.metadata.context_length)
    check_memory(decoder.graph, cache_bytes(groups, capacity))
    return Opened(
        reference=reference,
        path=path,
        decoder=decoder,
        groups=groups,
        capacity=capacity,
        config=config,
        registry=registry,
        decisions=(*source_decisions, capacity_decision),
    )


def cache_bytes(groups: tuple[CacheGroup, ...], capacity: int) -> int:
    """Bytes that the cache of one session takes at `capacity` tokens."""
    return sum(math.prod(port.extent(capacity)) * port.dtype.itemsize for group in groups for port in group.ports)


def generation_defaults(search: Mapping[str, Any]) -> dict[str, Any]:
    """What a model's own `search` section says, in the names of `[generation]`.

    Sampling settings count only if the model asks for sampling: exporters write them beside `do_sample: false`, too.
    """
    names = ["repetition_penalty"]
    if search.get("do_sample"):
        names += ["temperature", "top_k", "top_p", "min_p"]
    return {name: search[name] for name in names if search.get(name) is not None}


def _capacity(config: Config, context: int | None) -> tuple[int, Decision]:
    if config.cache.max_len is not None:
        note = f"the model's context is {context or 'not stated'}"
        answers: tuple[tuple[str, Answer], ...] = (("cache.max_len", Accepted(note)),)
        return config.cache.max_len, Decision(
            "capacity", f"{config.cache.max_len} tokens", answers, config.origin("cache.max_len")
        )
    capacity = min(context or DEFAULT_CAPACITY, DEFAULT_CAPACITY)
    note = f"the smaller of the model's context ({context or 'not stated'}) and {DEFAULT_CAPACITY}"
    return capacity, Decision("capacity", f"{capacity} tokens", (("default", Accepted(note)),))


def _check_names(config: Config, registry: Registry) -> None:
    """Refuse what does not exist before a model is downloaded or read."""
    for section, kind in _KINDS_WITH_OPTIONS.items():
        check_option_tables(config, registry, section, kind)
    for kind, name in (
        (BackendDescriptor, config.backend.name),
        (CacheStrategyDescriptor, config.cache.strategy),
        (CapturePolicyDescriptor, config.capture.policy),
        (ProposerDescriptor, config.speculative.proposer or "auto"),
        *((TraceSinkDescriptor, sink) for sink in config.trace.sinks),
    ):
        if name != "auto":
            registry.find(kind, name)
