"""What a session reports of itself."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from tokenmill.contracts.backend import ContextStats


@frozen(kw_only=True)
class SessionStats:
    """:param length: tokens that the cache holds.
    :param max_context: tokens that fit; None when every growing group grows freely.
    :param steps: forward passes that succeeded, re-fed ones included.
    :param cache_bytes: memory of all groups.
    :param strategies: name of the strategy by group.
    :param inputs: what fills each non-KV input, by port.
    """

    length: int
    max_context: int | None
    steps: int
    cache_bytes: int
    strategies: Mapping[str, str]
    inputs: Mapping[str, str]
    context: ContextStats
