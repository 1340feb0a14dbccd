"""Operators that take parts of an array or put parts into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tokenmill.contracts.answers import Declined

from tokenmill_cpu.frame import Frame
from tokenmill_cpu.operators.computed import Computed, Integers, integers
from tokenmill_cpu.operators.operator import Array, Node, Operator, implements


@implements("", "Gather")
def _gather(node: Node) -> Operator:
    axis = node.attributes.get("axis", 0)

    def gather(x: Array, indices: Array) -> Array:
        # `take` is faster, but copies the whole of a transposed array first, and makes a bare number of a single item.
        if indices.ndim and x.flags.c_contiguous:
            return x.take(indices, axis)
        before = (slice(None),) * (axis + x.ndim if axis < 0 else axis)
        return x[(*before, indices, ...)]

    return Computed(gather)


@implements("", "GatherElements")
def _gather_elements(node: Node) -> Operator:
    axis = node.attributes.get("axis", 0)
    return Computed(lambda x, indices: x[_element_places(x, indices, axis)])


@implements("", "ScatterElements")
def _scatter_elements(node: Node) -> Operator | Declined:
    if node.attributes.get("reduction", "none") != "none":
        return Declined("it scatters without a reduction only")
    axis = node.attributes.get("axis", 0)
    return Computed(lambda x, indices, updates: _replaced(x, _element_places(x, indices, axis), updates))


def _element_places(x: Array, indices: Array, axis: int) -> tuple[Array, ...]:
    """Each index counts along `axis`, on the other axes it stands where it is."""
    places: list[Array] = list(np.indices(indices.shape, sparse=True))
    places[axis] = indices
    return tuple(places)


@implements("", "GatherND")
def _gather_nd(node: Node) -> Operator | Declined:
    if node.attributes.get("batch_dims", 0):
        return Declined("it gathers without batch axes only")
    return Computed(lambda x, indices: x[_nd_places(indices)])


@implements("", "ScatterND")
def _scatter_nd(node: Node) -> Operator | Declined:
    if node.attributes.get("reduction", "none") != "none":
        return Declined("it scatters without a reduction only")
    return Computed(lambda x, indices, updates: _replaced(x, _nd_places(indices), updates))


def _nd_places(indices: Array) -> tuple[Any, ...]:
    """The last axis holds places on the leading axes of the array. The ellipsis keeps a single item an array."""
    return (*np.moveaxis(indices, -1, 0), ...)


def _replaced(x: Array, places: tuple[Any, ...], updates: Array) -> Array:
    result = x.copy()
    result[places] = updates
    return result


class Slice(Operator):
    """Python's slices clamp as ONNX's do, for steps of both signs."""

    def __init__(self, starts: Integers, ends: Integers, axes: Integers, steps: Integers) -> None:
        self._starts, self._ends, self._axes, self._steps = starts, ends, axes, steps

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        x = inputs[0]
        starts, ends, axes, steps = self._starts(inputs), self._ends(inputs), self._axes(inputs), self._steps(inputs)
        assert starts is not None and ends is not None
        part: list[Any] = [slice(None)] * x.ndim
        for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
            part[axes[index] if axes else index] = slice(start, end, steps[index] if steps else 1)
        return (x[tuple(part)],)


@implements("", "Slice")
def _slice(node: Node) -> Operator:
    names = ("starts", "ends", "axes") if node.instruction.version < 10 else (None, None, None)
    starts, ends, axes = (integers(node, position, name) for position, name in enumerate(names, 1))
    return Slice(starts, ends, axes, integers(node, 4))


class Split(Operator):
    """:param share: extents for a whole of some length, when none are given."""

    def __init__(self, axis: int, sizes: Integers, share: Callable[[int], list[int]]) -> None:
        self._axis, self._sizes, self._share = axis, sizes, share

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        x = inputs[0]
        whole = x.shape[self._axis]
        sizes = self._sizes(inputs) or self._share(whole)
        if sum(sizes) != whole or min(sizes) < 0:
            raise ValueError(f"parts of {sizes} do not make up {whole}")
        before = (slice(None),) * (self._axis + x.ndim if self._axis < 0 else self._axis)
        parts, start = [], 0
        for size in sizes:
            parts.append(x[(*before, slice(start, start + size))])
            start += size
        return parts


@implements("", "Split")
def _split(node: Node) -> Operator:
    count = node.attributes.get("num_outputs", len(node.instruction.outputs))
    uneven = node.instruction.version >= 18

    def share(whole: int) -> list[int]:
        """The last part is smaller when the whole does not divide, which opset 18 allows."""
        size = -(-whole // count) if uneven else whole // count
        return [size] * (count - 1) + [whole - size * (count - 1) if uneven else size]

    return Split(node.attributes.get("axis", 0), integers(node, 1, "split"), share)
