"""A decoder's past/present pairs, grouped by what their shapes do."""

from __future__ import annotations

from tokenmill.contracts.cache import CachedPort, CacheGroup
from tokenmill.errors import PortError
from tokenmill.model.decoder import Decoder
from tokenmill.model.geometry import StateGeometry, resolve_cached_ports


def cache_groups(decoder: Decoder) -> tuple[CacheGroup, ...]:
    """Attention's growing pairs in one group, recurrent states in another; a group without pairs is left out.

    :raises PortError: a pair whose empty past cannot be made.
    """
    states = resolve_cached_ports(decoder)
    growing = tuple(_port(decoder, state) for state in states if state.sequence_axis is not None)
    fixed = tuple(_port(decoder, state) for state in states if state.sequence_axis is None)
    groups = (CacheGroup("attention", "growing", growing), CacheGroup("states", "recurrent", fixed))
    return tuple(group for group in groups if group.ports)


def _port(decoder: Decoder, state: StateGeometry) -> CachedPort:
    past, present = decoder.graph.input(state.pair.past), decoder.graph.output(state.pair.present)
    assert past is not None and present is not None
    if state.sequence_axis is None and not state.complete:
        raise PortError(
            f"recurrent state '{past}' has an extent that nothing states",
            why="it starts as zeros at full extent",
            remedy="export the model with static extents for its states",
        )
    shape = tuple(0 if extent is None else extent for extent in state.shape)
    return CachedPort(state.pair, past, present, shape, state.dtype, state.sequence_axis)
