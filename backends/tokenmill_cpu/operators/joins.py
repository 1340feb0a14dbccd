"""Concat, which appends in place where its first input is a bound past, and Where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenmill_cpu.frame import Frame
from tokenmill_cpu.operators.computed import Computed
from tokenmill_cpu.operators.operator import Node, Operator, implements


class Concat(Operator):
    def __init__(self, axis: int) -> None:
        self._axis = axis

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        return (np.concatenate(inputs, self._axis),)


class Append(Concat):
    """Two inputs of which the first may be a past: the second is then written behind it, in the same storage."""

    appends = {0: 0}  # noqa: RUF012

    def __init__(self, axis: int) -> None:
        super().__init__(axis)
        self.append_axis = axis

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        past, new = inputs
        binding = frame.bound.get(id(past))
        if binding is None or binding.axis != self._axis % past.ndim:
            return super().run(frame, inputs)
        axis, length = binding.axis, past.shape[binding.axis]
        # An assignment would broadcast what cannot be joined.
        if new.shape != (*past.shape[:axis], new.shape[axis], *past.shape[axis + 1 :]):
            raise ValueError(f"{list(new.shape)} does not continue {list(past.shape)} along axis {axis}")
        total = length + new.shape[axis]
        if total > binding.capacity:
            raise ValueError(f"{total} entries are more than the {binding.capacity} that its storage holds")
        present = binding.view(total)
        present[(*(slice(None),) * axis, slice(length, None))] = new
        return (present,)


@implements("", "Concat")
def _concat(node: Node) -> Operator:
    axis = node.attributes.get("axis", 1)
    return Append(axis) if len(node.instruction.inputs) == 2 else Concat(axis)


@implements("", "Where")
def _where(node: Node) -> Operator:
    return Computed(np.where)
