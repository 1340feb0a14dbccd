"""Activations. Narrow floats are computed in float32 and rounded once.

A kernel runs however few the items are: numpy's functions give other bits, and a row must not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenmill.contracts.answers import Declined

from tokenmill_cpu.frame import Frame, address_of
from tokenmill_cpu.kernels import activations as kernels
from tokenmill_cpu.launch import Kernel
from tokenmill_cpu.operators.floats import FLOAT32, narrowed, rounded, settled, widened
from tokenmill_cpu.operators.operator import Array, Node, Operator, implements
from tokenmill_cpu.simd.vectors import LANES


class Activation(Operator):
    """A function of each item.

    :param parameters: of the function, the same for all items.
    """

    queues = True

    def __init__(self, node: Node, kernel: Kernel, *parameters: float) -> None:
        node.address_of(kernel)
        self._kernel, self._parameters = kernel, parameters

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        given = inputs[0]
        x, count = settled(frame, given), given.size
        if x is None:
            return NotImplemented
        y = np.empty(given.shape, FLOAT32)
        parts = frame.parts(count, count)
        frame.launch(self._kernel, parts, frame.hold(x), frame.hold(y), count, *self._parameters)
        return (rounded(frame, y, given.dtype),)


class BiasedActivation(Operator):
    """A function of each item, after a bias for each feature was added. Without a bias it is `plain`."""

    def __init__(self, node: Node, kernel: Kernel, plain: Operator) -> None:
        node.address_of(kernel)
        self._kernel, self._plain = kernel, plain

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        if len(inputs) < 2 or inputs[1] is None:
            return self._plain.run(frame, inputs)
        given = inputs[0]
        x, bias = widened(given), widened(inputs[1])
        if x is None or bias is None or not x.size or bias.shape != x.shape[-1:]:
            return NotImplemented
        y = np.empty(x.shape, FLOAT32)
        width = bias.size
        rows = x.size // width
        parts = frame.parts(x.size, rows)
        frame.launch(self._kernel, parts, address_of(x), address_of(y), address_of(bias), rows, width)
        return (narrowed(y, given.dtype),)


class GatedSilu(Operator):
    """`x * sigmoid(x) * y`, which graphs spell out in three nodes."""

    queues = True

    def __init__(self, node: Node) -> None:
        node.address_of(kernels.gated_silu)

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        gate, up = inputs
        if gate.shape != up.shape:
            gate, up = np.broadcast_arrays(gate, up)
        x, y = _rows_of(frame, gate), _rows_of(frame, up)
        if x is None or y is None:
            frame.finish()
            return (gate / (1 + np.exp(-gate)) * up,)
        out = np.empty(gate.shape, FLOAT32)
        if out.size:
            width = gate.shape[-1]
            rows = out.size // width
            frame.launch(
                kernels.gated_silu, frame.parts(out.size, rows * -(-width // LANES)),
                frame.hold(x), x.strides[-2], frame.hold(y), y.strides[-2], frame.hold(out), rows, width,
            )  # fmt: skip
        return (rounded(frame, out, gate.dtype),)


def _rows_of(frame: Frame, array: Array) -> Array | None:
    """As float32 `[rows, width]`, without a copy of what is part of wider rows; None for another kind of numbers."""
    x = array if array.dtype == FLOAT32 and array.strides[-1:] == (4,) else settled(frame, array)
    if x is None or x.ndim == 2:
        return x
    return x.reshape(-1, x.shape[-1] if x.ndim else 1)


_STANDARD = {
    "Relu": kernels.relu,
    "Exp": kernels.exp,
    "Sigmoid": kernels.sigmoid,
    "Tanh": kernels.tanh,
    "Erf": kernels.erf,
    "Softplus": kernels.softplus,
}


@implements("", *_STANDARD)
def _plain(node: Node) -> Operator:
    return Activation(node, _STANDARD[node.instruction.operator])


@implements("", "Gelu", since=20)
@implements("com.microsoft", "Gelu")
def _gelu(node: Node) -> Operator | Declined:
    approximation = node.attributes.get("approximate", "none")
    if approximation not in ("none", "tanh"):
        return Declined(f"approximate is {approximation!r}, and not 'none' or 'tanh'")
    return Activation(node, kernels.gelu if approximation == "none" else kernels.gelu_tanh)


@implements("com.microsoft", "BiasGelu")
def _bias_gelu(node: Node) -> Operator:
    return BiasedActivation(node, kernels.biased_gelu, Activation(node, kernels.gelu))


@implements("com.microsoft", "FastGelu")
def _fast_gelu(node: Node) -> Operator:
    return BiasedActivation(node, kernels.biased_gelu_tanh, Activation(node, kernels.gelu_tanh))


@implements("", "Swish", since=24)
def _swish(node: Node) -> Operator:
    return Activation(node, kernels.silu, float(node.attributes.get("alpha", 1.0)))


@implements("com.microsoft", "QuickGelu")
def _quick_gelu(node: Node) -> Operator:
    return Activation(node, kernels.silu, float(node.attributes.get("alpha", 1.702)))
