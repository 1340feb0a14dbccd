"""The hooks. Each is called once per registry, at discovery, without arguments, and never while tokens are made.

An implementation returns a list of descriptors: names and import paths. What they name is imported when it is chosen.
"""

from __future__ import annotations

from tokenmill.contracts.descriptors import (
    BackendDescriptor,
    CacheStrategyDescriptor,
    CapturePolicyDescriptor,
    LogitProcessorDescriptor,
    ModelSourceDescriptor,
    ProposerDescriptor,
    StepRouterDescriptor,
    TraceSinkDescriptor,
)
from tokenmill.hooks.markers import hookspec


@hookspec
def tokenmill_backends() -> list[BackendDescriptor]:  # type: ignore[empty-body]
    """On what does a graph run?

    Arguments: none. Returns a `BackendDescriptor` for each device backend; its factory, `factory(options, fallback)`,
    makes a `tokenmill.contracts.backend.Backend`. Called when plugins are discovered. The factory and `Backend.probe`
    are called at assembly: `auto` asks by priority, a configured name asks that one alone.
    """


@hookspec
def tokenmill_cache_strategies() -> list[CacheStrategyDescriptor]:  # type: ignore[empty-body]
    """Who owns past and present, how do they grow, shrink, get lent?

    Arguments: none. Returns a `CacheStrategyDescriptor` for each strategy; its factory, `factory(options)`, makes a
    `tokenmill.contracts.cache.CacheStrategy`. Called when plugins are discovered. At assembly every group of a
    decoder's cache asks the strategies by priority; the first that accepts keeps it.
    """


@hookspec
def tokenmill_capture_policies() -> list[CapturePolicyDescriptor]:  # type: ignore[empty-body]
    """May this step be recorded and replayed, and what ends a recording?

    Arguments: none. Returns a `CapturePolicyDescriptor` for each policy; its factory, `factory(options)`, makes a
    `tokenmill.contracts.capture.CapturePolicy`. Called when plugins are discovered; one policy is chosen per session.
    """


@hookspec
def tokenmill_step_routers() -> list[StepRouterDescriptor]:  # type: ignore[empty-body]
    """What fills this port at each step?

    Arguments: none. Returns a `StepRouterDescriptor` for each router; its factory, `factory(options)`, makes a
    `tokenmill.contracts.routing.StepRouter`. Called when plugins are discovered. A session asks all of them by priority
    for every non-KV input; the first claim wins, and a port that nobody claims is routed by the caller.
    """


@hookspec
def tokenmill_proposers() -> list[ProposerDescriptor]:  # type: ignore[empty-body]
    """Which tokens are worth verifying next?

    Arguments: none. Returns a `ProposerDescriptor` for each proposer; its factory, `factory(options)`, makes a
    `tokenmill.contracts.proposing.Proposer`. Called when plugins are discovered; a proposer is used when configuration
    names it.
    """


@hookspec
def tokenmill_model_sources() -> list[ModelSourceDescriptor]:  # type: ignore[empty-body]
    """What does this reference (a directory, `file.gguf`, `pypi:`, an alias) resolve to?

    Arguments: none. Returns a `ModelSourceDescriptor` for each source; its factory, `factory(options)`, makes a
    `tokenmill.contracts.sourcing.ModelSource`. Called when plugins are discovered. Sources are asked by priority; one
    may answer with another reference. A source that knows names of its own lists them in `metadata["aliases"]`.
    """


@hookspec
def tokenmill_logit_processors() -> list[LogitProcessorDescriptor]:  # type: ignore[empty-body]
    """What changes the logits before a token is chosen?

    Arguments: none. Returns a `LogitProcessorDescriptor` for each link of the chain; its factory,
    `factory(settings, vocabulary)`, makes a `tokenmill.contracts.processing.LogitProcessor`, or None when the settings
    leave it idle. Called when plugins are discovered; the chain is made once per generation, by priority.
    """


@hookspec
def tokenmill_trace_sinks() -> list[TraceSinkDescriptor]:  # type: ignore[empty-body]
    """Who receives spans and events?

    Arguments: none. Returns a `TraceSinkDescriptor` for each sink; its factory, `factory(options)`, makes a
    `tokenmill.trace.TraceSink`. Called when plugins are discovered; sinks named in `trace.sinks` are made at assembly.
    """
