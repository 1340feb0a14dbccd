"""Functions of items by themselves, and of rows to which a bias is added first.

A kernel is a loop that gets its function when it is compiled.
"""

from __future__ import annotations

import numpy as np

from tokenmill_cpu.launch import inlined, kernel, number, word
from tokenmill_cpu.simd import functions
from tokenmill_cpu.simd.functions import number_vector
from tokenmill_cpu.simd.vectors import LANES, largest, load_f32, load_first, store_f32, store_first


@inlined
def _relu(x):
    return largest(x, number_vector(0.0))


@inlined
def _each(args, thread, threads, function, *parameters):
    """y = function(x, *parameters) of every item. The block: x, y, number of items."""
    x, y, count = word(args, 1), word(args, 2), word(args, 3)
    vectors = count // LANES
    for at in range(
        4 * LANES * (vectors * thread // threads), 4 * LANES * (vectors * (thread + 1) // threads), 4 * LANES
    ):
        store_f32(y + at, function(load_f32(x + at), *parameters))
    rest, done = count % LANES, 4 * LANES * vectors
    if rest != 0 and thread == threads - 1:
        store_first(y + done, rest, function(load_first(x + done, rest, np.float32(0)), *parameters))


@inlined
def _each_row(args, thread, threads, function):
    """y = function(x + bias) of every row. The block: x, y, bias, rows, width."""
    x, y, bias, rows, width = word(args, 1), word(args, 2), word(args, 3), word(args, 4), word(args, 5)
    rest, done, zero = width % LANES, 4 * (width - width % LANES), np.float32(0)
    for row in range(rows * thread // threads, rows * (thread + 1) // threads):
        source, target = x + 4 * width * row, y + 4 * width * row
        for at in range(0, done, 4 * LANES):
            store_f32(target + at, function(load_f32(source + at) + load_f32(bias + at)))
        if rest != 0:
            value = load_first(source + done, rest, zero) + load_first(bias + done, rest, zero)
            store_first(target + done, rest, function(value))


@kernel("qqq")
def relu(args, thread, threads):
    _each(args, thread, threads, _relu)


@kernel("qqq")
def exp(args, thread, threads):
    _each(args, thread, threads, functions.exp)


@kernel("qqq")
def sigmoid(args, thread, threads):
    _each(args, thread, threads, functions.sigmoid)


@kernel("qqq")
def tanh(args, thread, threads):
    _each(args, thread, threads, functions.tanh)


@kernel("qqq")
def erf(args, thread, threads):
    _each(args, thread, threads, functions.erf)


@kernel("qqq")
def softplus(args, thread, threads):
    _each(args, thread, threads, functions.softplus)


@kernel("qqq")
def gelu(args, thread, threads):
    _each(args, thread, threads, functions.gelu)


@kernel("qqq")
def gelu_tanh(args, thread, threads):
    _each(args, thread, threads, functions.gelu_tanh)


@kernel("qqqd")
def silu(args, thread, threads):
    """Behind the block of the others comes the factor of x in the sigmoid."""
    _each(args, thread, threads, functions.silu, number(args, 4))


@kernel("qqqqqqq")
def gated_silu(args, thread, threads):
    """out = silu(x) * y. The block: x, its row stride, y, its row stride, out, rows, width. Split by vectors of all rows."""
    x, x_stride, y, y_stride, out = word(args, 1), word(args, 2), word(args, 3), word(args, 4), word(args, 5)
    rows, width = word(args, 6), word(args, 7)
    vectors = (width + LANES - 1) // LANES
    for unit in range(rows * vectors * thread // threads, rows * vectors * (thread + 1) // threads):
        row, at = unit // vectors, unit % vectors * 4 * LANES
        a, b, c = x + row * x_stride + at, y + row * y_stride + at, out + row * 4 * width + at
        rest = width - at // 4
        if rest >= LANES:
            store_f32(c, functions.silu(load_f32(a), 1.0) * load_f32(b))
        else:
            zero = np.float32(0)
            store_first(c, rest, functions.silu(load_first(a, rest, zero), 1.0) * load_first(b, rest, zero))


@kernel("qqqqq")
def biased_gelu(args, thread, threads):
    _each_row(args, thread, threads, functions.gelu)


@kernel("qqqqq")
def biased_gelu_tanh(args, thread, threads):
    _each_row(args, thread, threads, functions.gelu_tanh)
