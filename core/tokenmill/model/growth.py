"""Which axis of a past grows with the tokens, told by shapes alone."""

from __future__ import annotations

import re

from tokenmill.model.graph import Dimension, Port

_LENGTH_WORDS = re.compile(r"seq|past|len|total|time|context|token", re.IGNORECASE)


def is_static(extent: Dimension) -> bool:
    """A zero is how some exporters freeze an empty past: it is not an extent to rely on."""
    return isinstance(extent, int) and extent > 0


def batch_axis(shape: tuple[Dimension, ...]) -> int | None:
    """The axis named after the batch, else a symbolic first one; None when the batch is static.

    A past that holds key and value together, `[2, batch, heads, length, head_size]`, has its batch behind them.
    """
    for axis, extent in enumerate(shape):
        if isinstance(extent, str) and "batch" in extent.lower():
            return axis
    first = 1 if len(shape) == 5 and shape[0] == 2 else 0
    return first if shape and not is_static(shape[first]) else None


def sequence_axis(past: Port, present: Port | None = None) -> int | None:
    """The axis of a past that grows; None for a recurrent state, whose extents are all fixed.

    Growing KV has a symbolic extent where a recurrent state has a feature size: usually on the penultimate axis, with
    another symbol in the present. `present` decides between several symbolic axes.
    """
    shape = past.shape
    if shape is None or len(shape) < 2:
        return None
    batch = batch_axis(shape)
    axes = [axis for axis, extent in enumerate(shape) if axis != batch and not is_static(extent)]
    after = present.shape if present is not None and present.shape and len(present.shape) == len(shape) else shape
    changing = [axis for axis in axes if after[axis] != shape[axis]]
    named = [axis for axis in axes if isinstance(symbol := shape[axis], str) and _LENGTH_WORDS.search(symbol)]
    penultimate = len(shape) - 2
    for candidates in ([a for a in changing if a in named], changing, named):
        if candidates:
            return penultimate if penultimate in candidates else candidates[0]
    return penultimate if penultimate in axes else None
