"""Register tiles: small matrix products, unrolled when their code is generated. Addresses and strides are in bytes."""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tokenmill_cpu.simd.vectors import F32, FLOATS, I64, WIDTH, constant, load, multiply_add, splat, store


def product_tile(rows: int, vectors: int) -> Any:
    """Make `f(a, a_stride, b, b_stride, count, c, c_stride)`: C `[rows, 16 vectors]` = A `[rows, count]` B, of float32.

    Every item of C is one chain of multiply-adds in the order of `count`: it depends on nothing but its row of A and its
    column of B.
    """

    @intrinsic
    def tile(typing_context, a, a_stride, b, b_stride, count, c, c_stride):
        def generate(context, builder, signature, values):
            a, a_stride, b, b_stride, count, c, c_stride = values
            cells = [[cgutils.alloca_once_value(builder, constant(0.0)) for _ in range(vectors)] for _ in range(rows)]
            with cgutils.for_range(builder, count) as loop:
                step = builder.mul(loop.index, ir.Constant(I64, 4))
                row_of_b = builder.add(b, builder.mul(loop.index, b_stride))
                columns = [load(builder, _plus(builder, row_of_b, n * WIDTH), FLOATS) for n in range(vectors)]
                for row, totals in enumerate(cells):
                    item = load(builder, builder.add(_row(builder, a, a_stride, row), step), F32)
                    factor = splat(builder, item)
                    for column, total in zip(columns, totals, strict=True):
                        builder.store(multiply_add(builder, factor, column, builder.load(total)), total)
            for row, totals in enumerate(cells):
                for n, total in enumerate(totals):
                    store(builder, builder.load(total), _plus(builder, _row(builder, c, c_stride, row), n * WIDTH))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return tile


def _plus(builder: ir.IRBuilder, address: ir.Value, amount: int) -> ir.Value:
    return builder.add(address, ir.Constant(I64, amount))


def _row(builder: ir.IRBuilder, base: ir.Value, stride: ir.Value, index: int) -> ir.Value:
    return builder.add(base, builder.mul(stride, ir.Constant(I64, index)))
