"""The kinds of things that plugins contribute: which hook, which descriptor, and what a message calls them."""

from __future__ import annotations

from attrs import frozen

from tokenmill.contracts import descriptors
from tokenmill.contracts.descriptors import Descriptor


@frozen
class Kind:
    """:param label: what messages and `tokenmill plugins --json` call one of them."""

    label: str
    hook: str
    descriptor: type[Descriptor]


KINDS: tuple[Kind, ...] = (
    Kind("backend", "tokenmill_backends", descriptors.BackendDescriptor),
    Kind("cache strategy", "tokenmill_cache_strategies", descriptors.CacheStrategyDescriptor),
    Kind("capture policy", "tokenmill_capture_policies", descriptors.CapturePolicyDescriptor),
    Kind("step router", "tokenmill_step_routers", descriptors.StepRouterDescriptor),
    Kind("proposer", "tokenmill_proposers", descriptors.ProposerDescriptor),
    Kind("model source", "tokenmill_model_sources", descriptors.ModelSourceDescriptor),
    Kind("logit processor", "tokenmill_logit_processors", descriptors.LogitProcessorDescriptor),
    Kind("trace sink", "tokenmill_trace_sinks", descriptors.TraceSinkDescriptor),
)
KIND_OF_HOOK = {kind.hook: kind for kind in KINDS}
KIND_OF_DESCRIPTOR = {kind.descriptor: kind for kind in KINDS}
