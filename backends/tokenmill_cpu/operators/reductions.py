"""Sums, means, extremes and running sums along axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tokenmill.contracts.answers import Declined

from tokenmill_cpu.frame import Frame
from tokenmill_cpu.operators.computed import Computed, Integers, integers
from tokenmill_cpu.operators.operator import Array, Node, Operator, implements

# numpy's stubs know `keepdims` as a literal only.
_add: Callable[..., Any] = np.add.reduce
_maximum: Callable[..., Any] = np.maximum.reduce
_minimum: Callable[..., Any] = np.minimum.reduce


def _sum(x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
    if x.dtype.char == "e":
        # Summed in float32 and rounded once.
        return _add(x, axes, np.float32, keepdims=keepdims).astype(x.dtype)
    return _add(x, axes, x.dtype, keepdims=keepdims)


def _mean(x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
    wide = np.float32 if x.dtype.char == "e" else x.dtype
    total = _add(x, axes, wide, keepdims=keepdims)
    return (total / total.dtype.type(math.prod(x.shape[axis] for axis in axes))).astype(x.dtype, copy=False)


#: What it computes, of which types, and since when its axes are an input and not an attribute.
_REDUCTIONS: dict[str, tuple[Callable[..., Any], str, int]] = {
    "ReduceSum": (_sum, "efdilq", 13),
    "ReduceMean": (_mean, "efd", 18),
    "ReduceMax": (_maximum, "efdbBilqILQ", 18),
    "ReduceMin": (_minimum, "efdbBilqILQ", 18),
}


class Reduction(Operator):
    """Without axes it reduces all, or none if the node says so."""

    def __init__(
        self, reduce: Callable[..., Any], types: str, axes: Integers, keep: bool, none_without_axes: bool
    ) -> None:
        self._reduce, self._types, self._axes = reduce, types, axes
        self._keep, self._none_without_axes = keep, none_without_axes

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        x = inputs[0]
        if x.size == 0 or x.dtype.char not in self._types:
            return NotImplemented
        axes = self._axes(inputs)
        if not axes:
            if self._none_without_axes:
                return (x,)
            axes = list(range(x.ndim))
        return (np.asarray(self._reduce(x, tuple(axes), keepdims=self._keep)),)


@implements("", *_REDUCTIONS)
def _reduction(node: Node) -> Operator:
    reduce, types, since = _REDUCTIONS[node.instruction.operator]
    axes = integers(node, 1, None if node.instruction.version >= since else "axes")
    keep, none_without_axes = node.attributes.get("keepdims", 1), node.attributes.get("noop_with_empty_axes", 0)
    return Reduction(reduce, types, axes, bool(keep), bool(none_without_axes))


@implements("", "ArgMax")
def _argmax(node: Node) -> Operator | Declined:
    if node.attributes.get("select_last_index", 0):
        return Declined("it selects the first of equal items only")
    axis, keep = node.attributes.get("axis", 0), bool(node.attributes.get("keepdims", 1))
    return Computed(lambda x: np.asarray(x.argmax(axis, keepdims=keep)) if x.dtype.kind in "fiu" else NotImplemented)


@implements("", "CumSum")
def _cumulative_sum(node: Node) -> Operator | Declined:
    if node.attributes.get("exclusive", 0) or node.attributes.get("reverse", 0):
        return Declined("it sums forwards and inclusively only")
    return Computed(lambda x, axis: np.cumsum(x, axis.item(), x.dtype) if x.dtype.char in "fdilq" else NotImplemented)
