"""Operators that make, read and change shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenmill_cpu.frame import Frame
from tokenmill_cpu.operators.computed import Computed, Integers, ShapeReader, integers
from tokenmill_cpu.operators.operator import Array, Node, Operator, implements


@implements("", "Shape")
def _shape(node: Node) -> Operator:
    part = slice(node.attributes.get("start", 0), node.attributes.get("end"))
    return ShapeReader(lambda x: np.array(x.shape[part], np.int64))


@implements("", "Size")
def _size(node: Node) -> Operator:
    return ShapeReader(lambda x: np.array(x.size, np.int64))


@implements("", "Identity")
def _identity(node: Node) -> Operator:
    return Computed(lambda value: value)


@implements("", "Transpose")
def _transpose(node: Node) -> Operator:
    axes = node.attributes.get("perm")
    return Computed(lambda x: x.transpose(axes))


@implements("", "Flatten")
def _flatten(node: Node) -> Operator:
    axis = node.attributes.get("axis", 1)

    def flatten(x: Array) -> Array:
        split = axis + x.ndim if axis < 0 else axis
        return x.reshape(math.prod(x.shape[:split]), math.prod(x.shape[split:]))

    return Computed(flatten)


class Shaped(Operator):
    """Changes the shape of its first input by integers."""

    def __init__(self, read: Integers) -> None:
        self._read = read

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        return (self.shaped(inputs[0], self._read(inputs)),)

    def shaped(self, x: Array, given: list[int] | None) -> Array:
        raise NotImplementedError


class Reshape(Shaped):
    """A 0 keeps the extent of the same axis, unless it is allowed as an extent."""

    def __init__(self, read: Integers, allow_zero: bool) -> None:
        super().__init__(read)
        self._allow_zero = allow_zero

    def shaped(self, x: Array, given: list[int] | None) -> Array:
        assert given is not None
        if 0 in given and not self._allow_zero:
            given = [extent or x.shape[axis] for axis, extent in enumerate(given)]
        return x.reshape(given)


@implements("", "Reshape")
def _reshape(node: Node) -> Operator:
    return Reshape(integers(node, 1, "shape"), bool(node.attributes.get("allowzero", 0)))


class Squeeze(Shaped):
    def shaped(self, x: Array, given: list[int] | None) -> Array:
        return x.squeeze(None if given is None else tuple(given))


class Unsqueeze(Shaped):
    """Axes count in the result's shape."""

    def shaped(self, x: Array, given: list[int] | None) -> Array:
        assert given is not None
        extents = list(x.shape)
        rank = len(extents) + len(given)
        for axis in sorted(axis + rank if axis < 0 else axis for axis in given):
            if not 0 <= axis <= len(extents):
                raise ValueError(f"no axes {given} in a result of rank {rank}")
            extents.insert(axis, 1)
        return x.reshape(extents)


@implements("", "Squeeze")
def _squeeze(node: Node) -> Operator:
    return Squeeze(integers(node, 1, "axes"))


@implements("", "Unsqueeze")
def _unsqueeze(node: Node) -> Operator:
    return Unsqueeze(integers(node, 1, "axes"))


class Expand(Shaped):
    """Broadcasts both ways. Makes a new array: almost always a Reshape follows, which would have to."""

    def shaped(self, x: Array, given: list[int] | None) -> Array:
        assert given is not None
        rank = max(x.ndim, len(given))
        extents = [*(1,) * (rank - x.ndim), *x.shape]
        wanted = [*(1,) * (rank - len(given)), *given]
        target = [there if here == 1 else here for here, there in zip(extents, wanted, strict=True)]
        if any(there not in (1, extent) for there, extent in zip(wanted, target, strict=True)):
            raise ValueError(f"the shapes {list(x.shape)} and {given} do not broadcast")
        if len(target) == x.ndim and target == extents:
            return x
        result = np.empty(target, x.dtype)
        result[...] = x
        return result


@implements("", "Expand")
def _expand(node: Node) -> Operator:
    return Expand(integers(node, 1))


class Filled(Shaped):
    """A new array of one value."""

    def __init__(self, read: Integers, value: Array) -> None:
        super().__init__(read)
        self._value = value

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        return (np.full(self._read(inputs), self._value[0], self._value.dtype),)


@implements("", "ConstantOfShape")
def _constant_of_shape(node: Node) -> Operator:
    value = node.attributes.get("value", np.zeros(1, np.float32))
    return Filled(integers(node, 0), value.reshape(-1))


@implements("", "Tile", since=6)
def _tile(node: Node) -> Operator:
    return Computed(lambda x, repeats: np.tile(x, repeats.tolist()))


@implements("", "Range")
def _range(node: Node) -> Operator:
    def count_up(start: Array, limit: Array, delta: Array) -> Array:
        if start.dtype.kind != "i":
            # numpy's steps of floats are rounded otherwise than start + i * delta.
            return NotImplemented
        return np.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)

    return Computed(count_up)


@implements("", "Trilu")
def _trilu(node: Node) -> Operator:
    part = np.triu if node.attributes.get("upper", 1) else np.tril
    return Computed(lambda x, k=None: part(x, 0 if k is None else k.item()))
