"""Products of int8 activations with unsigned 4- or 8-bit weights, for 16 weight rows at a time.

Both sides come in blocks of 32 along the reduced axis. Layouts, for a group of 16 weight rows:

- weights of 4 bits, 256 bytes a block: byte `[step, row, i]` (4 x 16 x 4) has item `4 step + i` in its low half and
  item `16 + 4 step + i` in its high half; of 8 bits, 512 bytes a block: byte `[step, row, i]` (8 x 16 x 4) is item `4 step + i`;
- scales, and offsets if there are any, 16 numbers for 1 block or for `2**shift` blocks of weights;
- activations, a record of 44 bytes a block: float32 scale, int32 sum of the items times the weights' zero point,
  float32 scale times the sum, 32 int8 items.

With offsets `o = scale * zero point`, a weight is `scale * q - o`; without, its zero point is the same for all.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tokenmill_cpu.simd.vectors import (
    FLOATS,
    I8,
    I32,
    I64,
    INTEGERS,
    LANES,
    F32x16,
    constant,
    llvm,
    load,
    load_floats,
    multiply_add,
    prefetch_lines,
    splat,
    store,
)

BLOCK = 32
RECORD = 44
_SCALE, _ZERO, _SUM, _ITEMS = 0, 4, 8, 12

_BYTES = ir.VectorType(I8, 64)
#: How far ahead weights are fetched, in bytes.
_AHEAD = 2048


@intrinsic(prefer_literal=True)
def integer_tile(typing_context, rows, bits, scale_bytes, has_offsets, has_vnni, records, out, panel):
    """`integer_tile(rows, bits, scale_bytes, has_offsets, has_vnni, records, out, panel)`: `rows` x 16 float32 at `out`.

    `panel` is (weights, scales, offsets, shift, blocks, record stride, out stride); addresses and strides are bytes. The
    first five arguments are literals. A row's bits do not depend on `rows`.
    """
    rows_, bits_, scale_bytes_ = rows.literal_value, bits.literal_value, scale_bytes.literal_value
    offset_, vnni_ = has_offsets.literal_value, has_vnni.literal_value
    kind = {2: "f16", 4: "f32"}[scale_bytes_]

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        records, out, panel = values[5:]
        weights, scales, offsets, shift, blocks, record_stride, out_stride = cgutils.unpack_tuple(builder, panel)
        totals = [cgutils.alloca_once_value(builder, constant(0.0)) for _ in range(rows_)]
        with cgutils.for_range(builder, blocks) as loop:
            block = loop.index
            quads = _at(builder, weights, block, 64 * bits_)
            prefetch_lines(builder, builder.add(quads, ir.Constant(I64, _AHEAD)), bits_)
            factor = builder.lshr(block, shift)
            scale = load_floats(builder, _at(builder, scales, factor, LANES * scale_bytes_), kind)
            offset = (
                load_floats(builder, _at(builder, offsets, factor, LANES * scale_bytes_), kind) if offset_ else None
            )
            items = _items(builder, quads, bits_)
            for row, total in enumerate(totals):
                record = builder.add(records, builder.mul(record_stride, ir.Constant(I64, row)))
                record = _at(builder, record, block, RECORD)
                count = _dot(builder, items, builder.add(record, ir.Constant(I64, _ITEMS)), vnni_)
                step = splat(builder, _item(builder, record, _SCALE, ir.FloatType()))
                sum_ = builder.load(total)
                if offset is None:
                    count = builder.sub(count, splat(builder, _item(builder, record, _ZERO, I32)))
                else:
                    mass = splat(builder, builder.fneg(_item(builder, record, _SUM, ir.FloatType())))
                    sum_ = multiply_add(builder, offset, mass, sum_)
                number = builder.sitofp(count, FLOATS)
                builder.store(multiply_add(builder, number, builder.fmul(scale, step), sum_), total)
        for row, total in enumerate(totals):
            store(builder, builder.load(total), builder.add(out, builder.mul(out_stride, ir.Constant(I64, row))))
        return context.get_dummy_value()

    signature = types.void(
        rows, bits, scale_bytes, has_offsets, has_vnni, types.int64, types.int64, types.UniTuple(types.int64, 7)
    )
    return signature, generate


def _at(builder: ir.IRBuilder, base: ir.Value, index: ir.Value, size: int) -> ir.Value:
    return builder.add(base, builder.mul(index, ir.Constant(I64, size)))


def _item(builder: ir.IRBuilder, base: ir.Value, offset: int, kind: ir.Type) -> ir.Value:
    return load(builder, builder.add(base, ir.Constant(I64, offset)), kind)


def _items(builder: ir.IRBuilder, panel: ir.Value, bits: int) -> list[ir.Value]:
    """Unsigned bytes, 4 items of 16 rows a vector, in the order of the reduced axis."""
    chunks = [load(builder, builder.add(panel, ir.Constant(I64, 64 * n)), _BYTES) for n in range(bits)]
    if bits == 8:
        return chunks
    low = [builder.and_(chunk, constant(15, _BYTES)) for chunk in chunks]
    shifted = [builder.lshr(builder.bitcast(chunk, INTEGERS), constant(4, INTEGERS)) for chunk in chunks]
    return low + [builder.and_(builder.bitcast(half, _BYTES), constant(15, _BYTES)) for half in shifted]


def _dot(builder: ir.IRBuilder, items: list[ir.Value], activations: ir.Value, vnni: bool) -> ir.Value:
    """Sum over 32 items of both: int32 for 16 rows. Two chains, as one would wait for itself."""
    sums: list[ir.Value] = [constant(0, INTEGERS), constant(0, INTEGERS)]
    for step, quad in enumerate(items):
        four = _item(builder, activations, 4 * step, I32)
        multiply = _dot_vnni if vnni else _dot_portable
        sums[step // 4] = multiply(builder, sums[step // 4], quad, four)
    return builder.add(*sums)


def _dot_vnni(builder: ir.IRBuilder, total: ir.Value, quad: ir.Value, four: ir.Value) -> ir.Value:
    signed = builder.bitcast(splat(builder, four), _BYTES)
    return llvm(builder, "llvm.x86.avx512.vpdpbusd.512", [total, quad, signed], INTEGERS)


def _dot_portable(builder: ir.IRBuilder, total: ir.Value, quad: ir.Value, four: ir.Value) -> ir.Value:
    rows = builder.bitcast(quad, INTEGERS)
    for byte in range(4):
        weight = builder.and_(builder.lshr(rows, constant(8 * byte, INTEGERS)), constant(255, INTEGERS))
        item = builder.ashr(builder.shl(four, ir.Constant(I32, 24 - 8 * byte)), ir.Constant(I32, 24))
        total = builder.add(total, builder.mul(weight, splat(builder, item)))
    return total


@intrinsic
def store_bytes(typing_context, address, vector):
    """`store_bytes(address, vector)`: 16 whole numbers from -128 to 127, as int8; NaN is 0."""

    def lower(context, builder, signature, values):
        whole = llvm(builder, "llvm.fptosi.sat.v16i32.v16f32", [values[1]], INTEGERS)
        store(builder, builder.trunc(whole, ir.VectorType(I8, LANES)), values[0])
        return context.get_dummy_value()

    return types.void(types.int64, F32x16), lower
