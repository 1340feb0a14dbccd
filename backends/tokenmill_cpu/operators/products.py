"""Products of float matrices. float16 and bfloat16 are computed in float32 and rounded at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenmill.contracts.answers import Declined

from tokenmill_cpu.frame import Frame, address_of
from tokenmill_cpu.kernels.dense_product import PANEL, dense_product
from tokenmill_cpu.operators.floats import is_float, narrowed, rounded, settled, widened
from tokenmill_cpu.operators.operator import Array, Node, Operator, implements


def _panels(matrix: Array) -> Array:
    """`[inner, columns]` as `[panels, inner, 32]` float32, with zeros behind the last column."""
    inner, columns = matrix.shape
    count = -(-columns // PANEL)
    panels = np.zeros((count, inner, PANEL), np.float32)
    for panel in range(count):
        part = matrix[:, panel * PANEL : (panel + 1) * PANEL]
        panels[panel, :, : part.shape[1]] = part
    return panels


class DenseProduct(Operator):
    """`x W (+ bias)` with a weight that is known beforehand.

    :param matrix: `[inner, columns]` of any float type.
    :param packs: inputs of the node that this replaces.
    """

    row_wise = True
    queues = True

    def __init__(self, node: Node, matrix: Array, bias: Array | None = None, packs: Sequence[int] = (1,)) -> None:
        node.address_of(dense_product)
        self._inner, self._columns = matrix.shape
        self._panels, self._bias = _panels(matrix), bias
        self._weights = np.array([address_of(self._panels)], np.int64)
        self._bias_address = 0 if bias is None else address_of(bias)
        self.weight_bytes = self._panels.nbytes
        self.packs = frozenset(position for position in packs if node.has_input(position))

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        given = inputs[0]
        x = settled(frame, given)
        if x is None:
            return NotImplemented
        inner, columns = self._inner, self._columns
        if x.shape[-1] != inner:
            raise ValueError(f"rows of {x.shape[-1]} do not fit weights of width {inner}")
        out = np.empty((*x.shape[:-1], columns), np.float32)
        if out.size:
            places = np.array([frame.hold(x), frame.hold(out)], np.int64)
            base = frame.hold(places)
            frame.launch(
                dense_product, min(frame.threads, len(self._panels)), base, address_of(self._weights), base + 8, 1,
                out.size // columns, inner, columns, 4 * inner, 4 * PANEL, 4 * PANEL * inner, 4 * columns, 1,
                self._bias_address, 0,
            )  # fmt: skip
        return (rounded(frame, out, given.dtype),)


class ComputedProduct(Operator):
    """A product of two matrices, or of stacks of them that are broadcast."""

    def __init__(self, node: Node) -> None:
        node.address_of(dense_product)

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        a, b = inputs
        wide_a, wide_b = widened(a), widened(b)
        if wide_a is None or wide_b is None or a.dtype != b.dtype or a.ndim < 2 or b.ndim < 2:
            return NotImplemented
        if a.shape[-1] != b.shape[-2]:
            raise ValueError(f"matrices of {a.shape[-1]} columns and {b.shape[-2]} rows have no product")
        return (narrowed(multiply(frame, wide_a, wide_b), a.dtype),)


def multiply(frame: Frame, a: Array, b: Array) -> Array:
    """The product of float32 stacks in C order."""
    stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    out = np.empty((*stack, rows, columns), np.float32)
    if out.size:
        many_a, many_b, many_c = (_addresses(array, stack) for array in (a, b, out))
        parts = frame.parts(out.size * inner, -(-columns // PANEL) * many_c.size)
        scratch = frame.scratch("panel", parts * inner * 4 * PANEL)
        frame.launch(
            dense_product, parts, address_of(many_a), address_of(many_b), address_of(many_c), many_c.size, rows, inner,
            columns, 4 * inner, 4 * columns, 4 * PANEL, 4 * columns, 0, 0, scratch,
        )  # fmt: skip
    return out


def _addresses(array: Array, stack: tuple[int, ...]) -> Array:
    """Addresses of the matrices of a stack, in order."""
    places = np.full((), address_of(array), np.int64)
    for axis, (extent, stride) in enumerate(zip(array.shape[:-2], array.strides[:-2], strict=True)):
        step = np.arange(extent, dtype=np.int64) * stride
        places = places + step.reshape(-1, *(1,) * (array.ndim - 3 - axis))
    return np.ascontiguousarray(np.broadcast_to(places, stack)).reshape(-1)


@implements("", "MatMul")
def _matmul(node: Node) -> Operator:
    weight = node.constant(1)
    if weight is not None and weight.ndim == 2 and is_float(weight):
        return DenseProduct(node, weight)
    return ComputedProduct(node)


@implements("", "Gemm", since=7)
def _gemm(node: Node) -> Operator | Declined:
    attributes = node.attributes
    weight, bias = node.constant(1), node.constant(2)
    if weight is None or not is_float(weight) or attributes.get("transA", 0):
        return Declined("its weight is computed")
    columns = weight.shape[0 if attributes.get("transB", 0) else 1]
    if node.has_input(2) and (bias is None or bias.size != columns):
        return Declined("its addend is not one bias for all rows")
    matrix = (weight.T if attributes.get("transB", 0) else weight).astype(np.float32) * attributes.get("alpha", 1.0)
    if bias is not None:
        bias = np.ascontiguousarray(bias.reshape(-1).astype(np.float32) * np.float32(attributes.get("beta", 1.0)))
    return DenseProduct(node, matrix.astype(np.float32), bias, packs=(1, 2))
