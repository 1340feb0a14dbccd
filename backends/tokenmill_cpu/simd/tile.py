"""Register tiles: small matrix products, unrolled when their code is generated. Addresses and strides are in bytes."""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tokenmill_cpu.simd.vectors import (
    F32,
    FLOATS,
    I64,
    LANES,
    WIDTH,
    constant,
    load,
    multiply_add,
    shuffle,
    splat,
    store,
)


def product_tile(rows: int, vectors: int, *, accumulate: bool = False) -> Any:
    """Make `f(a, a_row, a_step, b, b_stride, count, c, c_stride)`: C `[rows, 16 vectors]` = (C +) A `[rows, count]` B.

    Items are float32. Those of A lie `a_row` bytes apart from row to row and `a_step` along `count`. Every item of C is one
    chain of multiply-adds in the order of `count`: it depends on nothing but its row of A and its column of B.
    """

    @intrinsic
    def tile(typing_context, a, a_row, a_step, b, b_stride, count, c, c_stride):
        def generate(context, builder, signature, values):
            a, a_row, a_step, b, b_stride, count, c, c_stride = values
            places = [
                [_plus(builder, _row(builder, c, c_stride, row), n * WIDTH) for n in range(vectors)]
                for row in range(rows)
            ]
            start = (lambda place: load(builder, place, FLOATS)) if accumulate else (lambda place: constant(0.0))
            cells = [[cgutils.alloca_once_value(builder, start(place)) for place in line] for line in places]
            with cgutils.for_range(builder, count) as loop:
                step = builder.mul(loop.index, a_step)
                row_of_b = builder.add(b, builder.mul(loop.index, b_stride))
                columns = [load(builder, _plus(builder, row_of_b, n * WIDTH), FLOATS) for n in range(vectors)]
                for row, totals in enumerate(cells):
                    item = load(builder, builder.add(_row(builder, a, a_row, row), step), F32)
                    factor = splat(builder, item)
                    for column, total in zip(columns, totals, strict=True):
                        builder.store(multiply_add(builder, factor, column, builder.load(total)), total)
            for line, totals in zip(places, cells, strict=True):
                for place, total in zip(line, totals, strict=True):
                    store(builder, builder.load(total), place)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), generate

    return tile


@intrinsic
def dots_of_16(typing_context, x, rows, stride, vectors, out):
    """`dots_of_16(x, rows, stride, vectors, out)`: products of x with each of 16 rows of `16 vectors` items."""

    def generate(context, builder, signature, values):
        x, rows, stride, vectors, out = values
        cells = [cgutils.alloca_once_value(builder, constant(0.0)) for _ in range(LANES)]
        with cgutils.for_range(builder, vectors) as loop:
            at = builder.mul(loop.index, ir.Constant(I64, WIDTH))
            factor = load(builder, builder.add(x, at), FLOATS)
            for row, cell in enumerate(cells):
                item = load(builder, builder.add(_row(builder, rows, stride, row), at), FLOATS)
                builder.store(multiply_add(builder, factor, item, builder.load(cell)), cell)
        store(builder, _sums(builder, [builder.load(cell) for cell in cells]), out)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


def _sums(builder: ir.IRBuilder, vectors: list[ir.Value]) -> ir.Value:
    """Lane i is the sum of the lanes of vector i. Each level adds halves of lanes and joins two vectors to one."""
    width = LANES // 2
    while width:
        vectors = [
            builder.fadd(
                shuffle(builder, first, second, _halves(width, 0)),
                shuffle(builder, first, second, _halves(width, width)),
            )
            for first, second in zip(vectors[:width], vectors[width:], strict=True)
        ]
        width //= 2
    return vectors[0]


def _halves(width: int, offset: int) -> list[int]:
    """Of each run of `2 width` lanes the half at `offset`, of a first vector and then of a second one."""
    return [
        vector + run + offset + lane
        for run in range(0, LANES, 2 * width)
        for vector in (0, LANES)
        for lane in range(width)
    ]


def _plus(builder: ir.IRBuilder, address: ir.Value, amount: int) -> ir.Value:
    return builder.add(address, ir.Constant(I64, amount))


def _row(builder: ir.IRBuilder, base: ir.Value, stride: ir.Value, index: int) -> ir.Value:
    return builder.add(base, builder.mul(stride, ir.Constant(I64, index)))
