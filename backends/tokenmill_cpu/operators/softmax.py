"""Softmax and its logarithm, along one axis or, before opset 13, over all from it on."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tokenmill_cpu.frame import Frame, address_of
from tokenmill_cpu.kernels.softmax import log_softmax, softmax
from tokenmill_cpu.launch import Kernel
from tokenmill_cpu.operators.floats import FLOAT32, narrowed, widened
from tokenmill_cpu.operators.operator import Node, Operator, implements


class Softmax(Operator):
    """:param flattens: whether a row is everything from the axis on."""

    def __init__(self, node: Node, kernel: Kernel, axis: int, *, flattens: bool) -> None:
        node.address_of(kernel)
        self._kernel, self._flattens = kernel, flattens
        self._axis = int(node.attributes.get("axis", axis))

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        given, axis, shape = inputs[0], self._axis, inputs[0].shape
        if not given.size or not shape:
            return NotImplemented
        along_last = self._flattens or axis == -1 or axis == given.ndim - 1
        x = widened(given if along_last else np.moveaxis(given, axis, -1))
        if x is None:
            return NotImplemented
        y = np.empty(x.shape, FLOAT32)
        width = prod(shape[axis:]) if self._flattens else x.shape[-1]
        rows = x.size // width
        parts = frame.parts(x.size, rows)
        frame.launch(self._kernel, parts, address_of(x), address_of(y), rows, width)
        if not along_last:
            y = np.moveaxis(y, -1, axis)
        return (narrowed(y, given.dtype),)


_KERNELS = {"Softmax": softmax, "LogSoftmax": log_softmax}


@implements("", *_KERNELS, until=13)
def _flattening(node: Node) -> Operator:
    return Softmax(node, _KERNELS[node.instruction.operator], 1, flattens=True)


@implements("", *_KERNELS, since=13)
def _along_an_axis(node: Node) -> Operator:
    return Softmax(node, _KERNELS[node.instruction.operator], -1, flattens=False)
