"""Matrix products of float32, 32 columns at a time.

Every item is one chain of multiply-adds along the reduced axis: its bits depend on nothing but its row and its column.
"""

from __future__ import annotations

import numpy as np

from tokenmill_cpu.launch import inlined, kernel, word
from tokenmill_cpu.simd.tile import product_tile
from tokenmill_cpu.simd.vectors import LANES, load_f32, read_f32, read_i64, store_f32, store_first, write_f32

#: Columns of a panel.
PANEL = 2 * LANES

_eight = product_tile(8, 2)
_four = product_tile(4, 2)
_one = product_tile(1, 2)


@inlined
def _copy_panel(source, stride, inner, count, target):
    """The last columns, to a panel of full width."""
    for k in range(inner):
        for column in range(count):
            write_f32(target + k * 4 * PANEL + 4 * column, read_f32(source + k * stride + 4 * column))
        for column in range(count, PANEL):
            write_f32(target + k * 4 * PANEL + 4 * column, np.float32(0))


@inlined
def _add_bias(place, bias, count):
    if count == PANEL:
        store_f32(place, load_f32(place) + load_f32(bias))
        store_f32(place + 4 * LANES, load_f32(place + 4 * LANES) + load_f32(bias + 4 * LANES))
    else:
        for column in range(count):
            write_f32(place + 4 * column, read_f32(place + 4 * column) + read_f32(bias + 4 * column))


@kernel("qqqqqqqqqqqqqq")
def dense_product(args, thread, threads):
    """C = A B (+ bias) for batches of matrices.

    Words: arrays of the addresses of A, B and C, batches, rows, inner, columns, strides in bytes of a row of A, of a row of
    a panel of B, from panel to panel and of a row of C, whether the last panel has full width in memory, bias or 0, scratch
    of a panel a part. Split by batches and panels.
    """
    many_a, many_b, many_c, batches = word(args, 1), word(args, 2), word(args, 3), word(args, 4)
    rows, inner, columns = word(args, 5), word(args, 6), word(args, 7)
    a_stride, b_stride, panel_stride, c_stride = word(args, 8), word(args, 9), word(args, 10), word(args, 11)
    padded, bias, scratch = word(args, 12), word(args, 13), word(args, 14)
    panels = (columns + PANEL - 1) // PANEL
    tasks = batches * panels
    margin = np.empty(8 * PANEL, np.float32)
    for task in range(tasks * thread // threads, tasks * (thread + 1) // threads):
        batch, panel = task // panels, task % panels
        count = min(columns - panel * PANEL, PANEL)
        b, stride = read_i64(many_b + 8 * batch) + panel * panel_stride, b_stride
        if count < PANEL and padded == 0:
            copy = scratch + thread * inner * 4 * PANEL
            _copy_panel(b, stride, inner, count, copy)
            b, stride = copy, 4 * PANEL
        a, c = read_i64(many_a + 8 * batch), read_i64(many_c + 8 * batch) + panel * 4 * PANEL
        row = 0
        while row < rows:
            source, target = a + row * a_stride, c + row * c_stride
            place, step = (target, c_stride) if count == PANEL else (margin.ctypes.data, 4 * PANEL)
            if rows - row >= 8:
                done = 8
                _eight(source, a_stride, 4, b, stride, inner, place, step)
            elif rows - row >= 4:
                done = 4
                _four(source, a_stride, 4, b, stride, inner, place, step)
            else:
                done = 1
                _one(source, a_stride, 4, b, stride, inner, place, step)
            for i in range(done):
                if bias != 0:
                    _add_bias(place + i * step, bias + panel * 4 * PANEL, count)
                if count < PANEL:
                    low = min(count, LANES)
                    store_first(target + i * c_stride, low, load_f32(place + i * step))
                    high = load_f32(place + i * step + 4 * LANES)
                    store_first(target + i * c_stride + 4 * LANES, count - low, high)
            row += done
