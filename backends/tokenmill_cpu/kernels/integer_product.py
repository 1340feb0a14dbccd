"""Products with 4- and 8-bit weights in blocks, with activations rounded to int8 in blocks of 32.

The error of the rounding is at most half a step of `max |block| / 127` an item; sums are exact int32 within a block and
float32 between blocks, in the order of blocks.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from tokenmill_cpu.launch import Kernel, inlined, kernel, word
from tokenmill_cpu.simd.integer_tile import BLOCK, RECORD, integer_tile, store_bytes
from tokenmill_cpu.simd.vectors import (
    LANES,
    absolute,
    largest,
    largest_of,
    load_f32,
    load_first,
    rounded,
    splat_number,
    store_f32,
    store_first,
    sum_of,
    write_f32,
    write_i32,
)

#: Rows that every part rounds by itself, which saves a launch.
ROWS_IN_PLACE = 8


@inlined
def _load_padded(address, count):
    if count >= LANES:
        return load_f32(address)
    return load_first(address, max(count, 0), np.float32(0))


@inlined
def _round_row(x, width, blocks, zero_point, record):
    """Write the records of a row. A block that is not finite gets a scale that is not, and spoils its sums."""
    for start in range(0, blocks * BLOCK, BLOCK):
        place = x + 4 * start
        low, high = _load_padded(place, width - start), _load_padded(place + 4 * LANES, width - start - LANES)
        peak = largest_of(largest(absolute(low), absolute(high)))
        scale = peak / np.float32(127)
        inverse = np.float32(127) / peak if scale > np.float32(1e-37) else np.float32(0)
        low, high = rounded(low * splat_number(inverse)), rounded(high * splat_number(inverse))
        total = sum_of(low + high)
        finite = total if total == total else np.float32(0)
        write_f32(record, scale)
        write_i32(record + 4, np.int32(finite) * np.int32(zero_point))
        write_f32(record + 8, scale * total)
        store_bytes(record + 12, low)
        store_bytes(record + 12 + LANES, high)
        record += RECORD


@kernel("qqqqqqq")
def round_rows(args, thread, threads):
    """Words: x, its row stride, rows, width, zero point, records, record stride. Split by rows."""
    x, stride, rows, width = word(args, 1), word(args, 2), word(args, 3), word(args, 4)
    zero_point, records, record_stride = word(args, 5), word(args, 6), word(args, 7)
    for row in range(rows * thread // threads, rows * (thread + 1) // threads):
        _round_row(x + row * stride, width, record_stride // RECORD, zero_point, records + row * record_stride)


@cache
def integer_product(bits: int, scale_bytes: int, has_offsets: bool, has_vnni: bool) -> Kernel:
    """The kernel for a format of weights.

    Words: x (0 when the records are there already), its row stride, rows, width, zero point, records, record stride,
    weights, scales, offsets, shift, blocks, factors' stride a group, bias or 0, out, its row stride, columns.
    Split by groups of 16 columns.
    """

    def product(args, thread, threads):
        x, stride, rows, width, zero_point = word(args, 1), word(args, 2), word(args, 3), word(args, 4), word(args, 5)
        records, record_stride = word(args, 6), word(args, 7)
        weights, scales, offsets, shift = word(args, 8), word(args, 9), word(args, 10), word(args, 11)
        blocks, factor_stride = word(args, 12), word(args, 13)
        bias, out, out_stride, columns = word(args, 14), word(args, 15), word(args, 16), word(args, 17)
        groups = (columns + LANES - 1) // LANES
        if x != 0:
            records += thread * rows * record_stride
            for row in range(rows):
                _round_row(x + row * stride, width, record_stride // RECORD, zero_point, records + row * record_stride)
        margin = np.empty(4 * LANES, np.float32)
        for group in range(groups * thread // threads, groups * (thread + 1) // threads):
            count = min(columns - group * LANES, LANES)
            step = out_stride if count == LANES else LANES * 4
            factors = group * factor_stride
            w = weights + group * blocks * 64 * bits
            panel = (w, scales + factors, offsets + factors, shift, blocks, record_stride, step)
            row = 0
            while row < rows:
                target = out + row * out_stride + group * LANES * 4
                place = target if count == LANES else margin.ctypes.data
                r = records + row * record_stride
                if rows - row >= 4:
                    done = 4
                    integer_tile(4, bits, scale_bytes, has_offsets, has_vnni, r, place, panel)
                elif rows - row >= 2:
                    done = 2
                    integer_tile(2, bits, scale_bytes, has_offsets, has_vnni, r, place, panel)
                else:
                    done = 1
                    integer_tile(1, bits, scale_bytes, has_offsets, has_vnni, r, place, panel)
                for i in range(done):
                    if count < LANES:
                        vector = load_f32(place + i * step)
                        if bias != 0:
                            vector = vector + load_first(bias + group * LANES * 4, count, np.float32(0))
                        store_first(target + i * out_stride, count, vector)
                    elif bias != 0:
                        spot = target + i * out_stride
                        store_f32(spot, load_f32(spot) + load_f32(bias + group * LANES * 4))
                row += done

    return Kernel(product, "q" * 17)
