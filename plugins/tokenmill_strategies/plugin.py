"""Announces the built-in cache strategies, step routers, capture policy, model sources and logit processors."""

from __future__ import annotations

from tokenmill.contracts.descriptors import (
    CacheStrategyDescriptor,
    CapturePolicyDescriptor,
    LogitProcessorDescriptor,
    ModelSourceDescriptor,
    StepRouterDescriptor,
)
from tokenmill.hooks.markers import hookimpl

from tokenmill_strategies import processors, sources

TOKENMILL_API = (1, 0)


@hookimpl
def tokenmill_cache_strategies() -> list[CacheStrategyDescriptor]:
    package = "tokenmill_strategies.caches"
    return [
        CacheStrategyDescriptor(
            name="in_place",
            summary="one buffer per pair at capacity, to which attention appends",
            factory=f"{package}.in_place:InPlace",
            options=f"{package}.in_place:InPlaceOptions",
            capabilities=("growing", "windowed", "rewind", "lend"),
            priority=20,
        ),
        CacheStrategyDescriptor(
            name="copied",
            summary="a round trip through the host at each step, for any graph",
            factory=f"{package}.copied:Copied",
            options=f"{package}.copied:CopiedOptions",
            capabilities=("growing", "windowed", "rewind", "lend", "mark"),
            priority=10,
        ),
        CacheStrategyDescriptor(
            name="recurrent",
            summary="states of fixed extent, with snapshots to go back to",
            factory=f"{package}.recurrent:Recurrent",
            options=f"{package}.recurrent:RecurrentOptions",
            capabilities=("recurrent", "rewind", "lend", "mark"),
            priority=0,
        ),
    ]


@hookimpl
def tokenmill_step_routers() -> list[StepRouterDescriptor]:
    routers = {
        "token_ids": ("TokenIds", "the step's token ids"),
        "inputs_embeds": ("InputsEmbeds", "embeddings that the caller gives"),
        "attention_mask": ("AttentionMask", "ones over past and new tokens, or a causal mask of rank 4"),
        "position_ids": ("PositionIds", "positions of the new tokens, also one row per rotary axis"),
        "use_cache_branch": ("UseCacheBranch", "the switch of a merged decoder"),
    }
    return [
        StepRouterDescriptor(name=name, summary=summary, factory=f"tokenmill_strategies.routers.{name}:{attribute}")
        for name, (attribute, summary) in routers.items()
    ]


@hookimpl
def tokenmill_capture_policies() -> list[CapturePolicyDescriptor]:
    return [
        CapturePolicyDescriptor(
            name="structural",
            summary="captures when the device can and the graph lets it",
            factory="tokenmill_strategies.capture.structural:Structural",
            options="tokenmill_strategies.capture.structural:StructuralOptions",
            capabilities=("retain_on_rewind",),
        )
    ]


@hookimpl
def tokenmill_model_sources() -> list[ModelSourceDescriptor]:
    return sources.descriptors()


@hookimpl
def tokenmill_logit_processors() -> list[LogitProcessorDescriptor]:
    return processors.descriptors()
