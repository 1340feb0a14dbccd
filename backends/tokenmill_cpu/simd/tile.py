"""Register tiles: small matrix products and transpositions, unrolled when their code is generated.

Addresses and strides are in bytes; items are float32. A vector has 16 items whatever the processor has: LLVM splits it.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_VECTOR = ir.VectorType(_F32, LANES)
_QUAD = ir.VectorType(_F32, 4)


def product_tile(rows: int, vectors: int, *, accumulate: bool) -> Any:
    """Make `f(a, a_stride, b, b_stride, count, c, c_stride)`: C `[rows, 16 vectors]` = (C +) A `[rows, count]` B.

    Every item of C is one chain of multiply-adds in the order of `count`: it depends on nothing but its row of A and its
    column of B.
    """

    @intrinsic
    def tile(typing_context, a, a_stride, b, b_stride, count, c, c_stride):
        def generate(context, builder, signature, values):
            a, a_stride, b, b_stride, count, c, c_stride = values
            cells = [
                (_offset(builder, c, c_stride, row, column * LANES * 4), cgutils.alloca_once(builder, _VECTOR))
                for row in range(rows)
                for column in range(vectors)
            ]
            for address, cell in cells:
                start = _load(builder, address, _VECTOR) if accumulate else ir.Constant(_VECTOR, None)
                builder.store(start, cell)
            with cgutils.for_range(builder, count) as loop:
                step = builder.mul(loop.index, ir.Constant(_I64, 4))
                row_of_b = builder.add(b, builder.mul(loop.index, b_stride))
                columns = [_load(builder, _plus(builder, row_of_b, n * LANES * 4), _VECTOR) for n in range(vectors)]
                for row in range(rows):
                    item = _load(builder, builder.add(_offset(builder, a, a_stride, row, 0), step), _F32)
                    factor = _splat(builder, item)
                    for n, column in enumerate(columns):
                        cell = cells[row * vectors + n][1]
                        builder.store(_multiply_add(builder, factor, column, builder.load(cell)), cell)
            for address, cell in cells:
                _store(builder, builder.load(cell), address)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return tile


@intrinsic
def transpose_16(typing_context, source, source_stride, width, target, target_stride):
    """`transpose_16(source, source_stride, width, target, target_stride)`: 16 rows of `width`, a multiple of 4, become
    `width` rows of 16.
    """

    def generate(context, builder, signature, values):
        source, source_stride, width, target, target_stride = values
        with cgutils.for_range(builder, builder.udiv(width, ir.Constant(_I64, 4))) as loop:
            place = builder.add(source, builder.mul(loop.index, ir.Constant(_I64, 16)))
            quads = [_load(builder, _offset(builder, place, source_stride, row, 0), _QUAD) for row in range(LANES)]
            # Vector j holds rows j, 4 + j, 8 + j and 12 + j: a 4 x 4 transposition within lanes then leaves them in order.
            strips = [_joined(builder, quads[j::4]) for j in range(4)]
            pairs = [
                _within_lanes(builder, strips[first], strips[first + 1], order)
                for first in (0, 2)
                for order in ([0, 16, 1, 17], [2, 18, 3, 19])
            ]
            columns = [
                _within_lanes(builder, pairs[half], pairs[half + 2], order)
                for half in (0, 1)
                for order in ([0, 1, 16, 17], [2, 3, 18, 19])
            ]
            row = builder.add(target, builder.mul(builder.mul(loop.index, ir.Constant(_I64, 4)), target_stride))
            for i, column in enumerate(columns):
                _store(builder, column, _offset(builder, row, target_stride, i, 0))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


def _plus(builder: ir.IRBuilder, address: ir.Value, amount: int) -> ir.Value:
    return builder.add(address, ir.Constant(_I64, amount))


def _offset(builder: ir.IRBuilder, base: ir.Value, stride: ir.Value, index: int, amount: int) -> ir.Value:
    return _plus(builder, builder.add(base, builder.mul(stride, ir.Constant(_I64, index))), amount)


def _load(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = 4
    return value


def _store(builder: ir.IRBuilder, value: ir.Value, address: ir.Value) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 4


def _shuffle(builder: ir.IRBuilder, first: ir.Value, second: ir.Value, order: list[int]) -> ir.Value:
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(_I32, len(order)), order))


def _splat(builder: ir.IRBuilder, item: ir.Value) -> ir.Value:
    empty = ir.Constant(_VECTOR, ir.Undefined)
    return _shuffle(builder, builder.insert_element(empty, item, ir.Constant(_I32, 0)), empty, [0] * LANES)


def _joined(builder: ir.IRBuilder, parts: list[ir.Value]) -> ir.Value:
    while len(parts) > 1:
        order = list(range(2 * parts[0].type.count))
        parts = [_shuffle(builder, low, high, order) for low, high in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _within_lanes(builder: ir.IRBuilder, first: ir.Value, second: ir.Value, order: list[int]) -> ir.Value:
    """A shuffle of four items that is repeated in each run of four."""
    return _shuffle(builder, first, second, [item + lane for lane in range(0, LANES, 4) for item in order])


def _multiply_add(builder: ir.IRBuilder, factor: ir.Value, value: ir.Value, total: ir.Value) -> ir.Value:
    """Fused where the processor can: `llvm.fmuladd` never calls a library."""
    name = "llvm.fmuladd.v16f32"
    known = builder.module.globals.get(name)
    function = known or ir.Function(builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), name)
    return builder.call(function, [factor, value, total])
