"""Operators on weights in blocks of 4 or 8 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenmill.contracts.answers import Declined

from tokenmill_cpu.frame import Frame, address_of
from tokenmill_cpu.kernels.integer_product import ROWS_IN_PLACE, integer_product, round_rows
from tokenmill_cpu.launch import Kernel
from tokenmill_cpu.operators.blocks import BlockWeights, PackedBlocks, join, matmul_weights, pack
from tokenmill_cpu.operators.floats import rounded, settled
from tokenmill_cpu.operators.operator import Array, Node, Operator, implements
from tokenmill_cpu.operators.products import DenseProduct
from tokenmill_cpu.simd.integer_tile import BLOCK, RECORD
from tokenmill_cpu.simd.vectors import LANES


class IntegerProduct(Operator):
    """`x W^T (+ bias)` with activations rounded to int8.

    :param columns: rows of W.
    :param middle: zero point of all weights that have no offsets.
    """

    row_wise = True
    queues = True

    def __init__(
        self, kernel: Kernel, weights: PackedBlocks, bias: Array | None, columns: int, width: int, middle: int
    ) -> None:
        self._kernel, self.weights, self.bias = kernel, weights, bias
        self.columns, self._width, self._middle = columns, width, middle
        self._zero_point = 0 if weights.offsets is not None else middle
        self._record_stride = weights.blocks * RECORD
        self._groups = -(-columns // LANES)
        self.weight_bytes = weights.nbytes + (0 if bias is None else bias.nbytes)
        # What no run changes, of the words behind the records and of those behind the output.
        offsets = 0 if weights.offsets is None else address_of(weights.offsets)
        self._packed = (
            address_of(weights.weights), address_of(weights.scales), offsets, weights.shift, weights.blocks,
            weights.factor_stride, 0 if bias is None else address_of(bias),
        )  # fmt: skip

    @property
    def format(self) -> tuple[object, ...]:
        """Products of one input and of equal formats can be one."""
        return self._kernel, self._width, self._middle, self.weights.shift, self.bias is None

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        given = inputs[0]
        x = settled(frame, given)
        if x is None:
            return NotImplemented
        return (rounded(frame, self.product(frame, x), given.dtype),)

    def product(self, frame: Frame, x: Array) -> Array:
        """Of float32 rows."""
        if x.shape[-1] != self._width:
            raise ValueError(f"rows of {x.shape[-1]} do not fit weights of width {self._width}")
        out = np.empty((*x.shape[:-1], self.columns), np.float32)
        rows = x.size // self._width if self._width else 0
        if out.size:
            self._launch(frame, x, rows, out)
        return out

    def joined(self, others: Sequence[IntegerProduct]) -> IntegerProduct:
        """With the columns of others of its format behind its own."""
        products = [self, *others]
        weights = join([product.weights for product in products])
        biases = [product.bias for product in products if product.bias is not None]
        return IntegerProduct(
            self._kernel, weights, np.concatenate(biases) if biases else None,
            sum(product.columns for product in products), self._width, self._middle,
        )  # fmt: skip

    def _launch(self, frame: Frame, x: Array, rows: int, out: Array) -> None:
        threads, stride = frame.threads, self._record_stride
        parts = min(threads, self._groups)
        if rows <= ROWS_IN_PLACE:
            records, source = frame.scratch("records", parts * rows * stride), frame.hold(x)
        else:
            records, source = frame.scratch("records", rows * stride), 0
            frame.launch(
                round_rows,
                min(threads, rows),
                frame.hold(x),
                4 * self._width,
                rows,
                self._width,
                self._zero_point,
                records,
                stride,
            )
        frame.launch(
            self._kernel, parts, source, 4 * self._width, rows, self._width, self._zero_point, records, stride,
            *self._packed, frame.hold(out), 4 * self.columns, self.columns,
        )  # fmt: skip


class JoinedProducts(Operator):
    """Several products of one input: their columns come side by side, and each output is a view of its own."""

    queues = True

    @staticmethod
    def fits(products: Sequence[IntegerProduct]) -> bool:
        """Whether all but the last end with a whole group of columns."""
        return all(product.columns % LANES == 0 for product in products[:-1])

    def __init__(self, products: Sequence[IntegerProduct]) -> None:
        self._product = products[0].joined(products[1:])
        self.weight_bytes = self._product.weight_bytes
        ends = np.cumsum([product.columns for product in products]).tolist()
        self._columns = [slice(end - product.columns, end) for end, product in zip(ends, products, strict=True)]

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        x = settled(frame, inputs[0])
        if x is None:
            raise ValueError(f"a product takes no {inputs[0].dtype}")
        out = rounded(frame, self._product.product(frame, x), inputs[0].dtype)
        return [out[..., columns] for columns in self._columns]


@implements("com.microsoft", "MatMulNBits")
def _matmul_nbits(node: Node) -> Operator | Declined:
    """Activations are rounded to int8 where the graph allows that (`accuracy_level` 4), else all is float32."""
    attributes = node.attributes
    if node.has_input(4):
        return Declined("g_idx reorders its weights")
    constants = [node.constant(position) for position in (1, 2, 3, 5)]
    packed, scales, zero_points, bias = constants
    if packed is None or scales is None:
        return Declined("its weights are computed")
    if (zero_points is None and node.has_input(3)) or (bias is None and node.has_input(5)):
        return Declined("its zero points or bias are computed")
    bits, block_size = attributes.get("bits", 4), attributes["block_size"]
    if bits not in (2, 4, 8):
        return Declined(f"weights of {bits} bits")
    source = matmul_weights(
        packed, scales, zero_points, rows=attributes["N"], width=attributes["K"], bits=bits, block_size=block_size
    )
    bias = None if bias is None else np.ascontiguousarray(bias, np.float32)
    if attributes.get("accuracy_level", 0) != 4 or bits == 2 or block_size % BLOCK:
        return DenseProduct(node, source.dense().T, bias, packs=(1, 2, 3, 5))
    return _integer_product(node, source, bias)


def _integer_product(node: Node, source: BlockWeights, bias: Array | None) -> IntegerProduct:
    weights = pack(source, node)
    kernel = integer_product(
        source.bits, weights.scales.itemsize, weights.offsets is not None, node.level == "avx512_vnni"
    )
    node.address_of(kernel)
    node.address_of(round_rows)
    product = IntegerProduct(kernel, weights, bias, source.rows, source.width, source.middle)
    product.packs = frozenset(
        position for position in (1, 2, 3, 5) if node.has_input(position) and node.constant(position) is not None
    )
    return product


class BlockGather(Operator):
    """Rows of a table in blocks, as floats."""

    def __init__(self, source: BlockWeights) -> None:
        self._source = source

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        indices, source = inputs[1], self._source
        flat = indices.reshape(-1)
        if flat.size and not -source.rows <= flat.min() <= flat.max() < source.rows:
            return NotImplemented
        part = BlockWeights(
            source.packed[flat], source.scales[flat],
            None if source.zero_points is None else source.zero_points[flat], source.bits, source.width,
        )  # fmt: skip
        return (part.dense().reshape(*indices.shape, source.width).astype(source.scales.dtype),)


@implements("com.microsoft", "GatherBlockQuantized")
def _gather_block_quantized(node: Node) -> Operator | Declined:
    attributes = node.attributes
    table, scales, zero_points = node.constant(0), node.constant(2), node.constant(3)
    if table is None or scales is None or (zero_points is None and node.has_input(3)):
        return Declined("its table is computed")
    bits, size = attributes.get("bits", 4), attributes.get("block_size", 128)
    if table.dtype != np.uint8 or table.ndim != 2 or bits not in (4, 8):
        return Declined(f"a table of {table.dtype} and rank {table.ndim}")
    if attributes.get("gather_axis", 0) != 0 or attributes.get("quantize_axis", 1) not in (1, -1):
        return Declined("it gathers rows of blocks along the last axis only")
    rows, width = table.shape[0], table.shape[1] * 8 // bits
    if width % size:
        return Declined("its rows end within a block")
    return BlockGather(matmul_weights(table, scales, zero_points, rows=rows, width=width, bits=bits, block_size=size))
