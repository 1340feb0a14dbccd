"""Softmax of rows, and its logarithm. A row is summed in an order that depends on its width alone."""

from __future__ import annotations

import math

import numpy as np

from tokenmill_cpu.launch import inlined, kernel, word
from tokenmill_cpu.simd.functions import exp, number_vector
from tokenmill_cpu.simd.vectors import (
    LANES,
    largest,
    largest_of,
    load_f32,
    load_first,
    store_f32,
    store_first,
    sum_of,
)


@inlined
def _peak(x, width):
    """The largest item; NaN when there is one."""
    stop, rest, lowest = 4 * (width - width % LANES), width % LANES, np.float32(-np.inf)
    a, b = number_vector(lowest), number_vector(lowest)
    for at in range(0, stop - 4 * LANES, 8 * LANES):
        a, b = largest(a, load_f32(x + at)), largest(b, load_f32(x + at + 4 * LANES))
    if stop % (8 * LANES) != 0:
        a = largest(a, load_f32(x + stop - 4 * LANES))
    if rest != 0:
        b = largest(b, load_first(x + stop, rest, lowest))
    return largest_of(largest(a, b))


@inlined
def _exponentials(x, y, width, peak):
    """Sum of exp(x - peak); each goes to y, unless that is 0."""
    stop, rest, lowest = 4 * (width - width % LANES), width % LANES, np.float32(-np.inf)
    top, a, b = number_vector(peak), number_vector(0.0), number_vector(0.0)
    for at in range(0, stop - 4 * LANES, 8 * LANES):
        p, q = exp(load_f32(x + at) - top), exp(load_f32(x + at + 4 * LANES) - top)
        a, b = a + p, b + q
        if y != 0:
            store_f32(y + at, p)
            store_f32(y + at + 4 * LANES, q)
    if stop % (8 * LANES) != 0:
        p = exp(load_f32(x + stop - 4 * LANES) - top)
        a = a + p
        if y != 0:
            store_f32(y + stop - 4 * LANES, p)
    if rest != 0:
        p = exp(load_first(x + stop, rest, lowest) - top)
        b = b + p
        if y != 0:
            store_first(y + stop, rest, p)
    return sum_of(a + b)


@kernel("qqqq")
def softmax(args, thread, threads):
    """y = exp(x - peak) / sum. The block: x, y, rows, width."""
    x, y, rows, width = word(args, 1), word(args, 2), word(args, 3), word(args, 4)
    stop, rest = 4 * (width - width % LANES), width % LANES
    for row in range(rows * thread // threads, rows * (thread + 1) // threads):
        source, target = x + 4 * width * row, y + 4 * width * row
        total = number_vector(_exponentials(source, target, width, _peak(source, width)))
        for at in range(0, stop, 4 * LANES):
            store_f32(target + at, load_f32(target + at) / total)
        if rest != 0:
            store_first(target + stop, rest, load_first(target + stop, rest, np.float32(0)) / total)


@kernel("qqqq")
def log_softmax(args, thread, threads):
    """y = x - peak - log(sum). The block: x, y, rows, width."""
    x, y, rows, width = word(args, 1), word(args, 2), word(args, 3), word(args, 4)
    stop, rest = 4 * (width - width % LANES), width % LANES
    for row in range(rows * thread // threads, rows * (thread + 1) // threads):
        source, target = x + 4 * width * row, y + 4 * width * row
        peak = _peak(source, width)
        top = number_vector(peak)
        total = number_vector(math.log(np.float64(_exponentials(source, 0, width, peak))))
        for at in range(0, stop, 4 * LANES):
            store_f32(target + at, load_f32(source + at) - top - total)
        if rest != 0:
            store_first(target + stop, rest, load_first(source + stop, rest, np.float32(0)) - top - total)
