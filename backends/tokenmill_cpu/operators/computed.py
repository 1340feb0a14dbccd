"""Operators that are a numpy function of their inputs: right for small arrays, of which a decode step has hundreds.

Each says which opset versions and types it is exactly right for; others go to the host fallback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tokenmill_cpu.frame import Frame
from tokenmill_cpu.operators.operator import Node, Operator


class Computed(Operator):
    """:param compute: takes the inputs as arguments and gives the only output, or `NotImplemented`."""

    def __init__(self, compute: Callable[..., Any]) -> None:
        self._compute = compute

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        value = self._compute(*inputs)
        return NotImplemented if value is NotImplemented else (value,)


class ShapeReader(Computed):
    """Looks at its first input's shape alone."""

    reads_shape = frozenset({0})


#: Gives integers that a node has as a constant, an attribute, or gets as an input at each run.
Integers = Callable[[Sequence[Any]], "list[int] | None"]


def integers(node: Node, position: int, attribute: str | None = None) -> Integers:
    """How to read an input of integers, or an attribute in its place: once when it is known now, else in each run.

    The list is None when the node has neither.
    """
    known: list[int] | None
    if attribute is not None and attribute in node.attributes:
        known = list(node.attributes[attribute])
    elif not node.has_input(position):
        known = None
    elif (constant := node.constant(position)) is not None:
        known = constant.reshape(-1).tolist()
    else:
        return lambda inputs: inputs[position].reshape(-1).tolist()
    return lambda inputs: known


def is_native(*arrays: Any) -> bool:
    """Whether numpy itself computes with these types: no strings, and none of `ml_dtypes`."""
    return all(type(array) is np.ndarray and array.dtype.char in "fqilebhHBILQd?" for array in arrays)
