"""Sums, differences, products and quotients of rows: numpy's bits, on several threads."""

from __future__ import annotations

import operator

import numpy as np

from tokenmill_cpu.launch import inlined, kernel, word
from tokenmill_cpu.simd.functions import number_vector
from tokenmill_cpu.simd.vectors import LANES, load_f32, load_first, read_f32, store_f32, store_first

#: a, b, y, rows, width; of a and of b: bytes from row to row, and whether a row is one item for all.
_WORDS = "qqqqqqqqq"


@inlined
def _rows(args, thread, threads, function):
    a, b, y, rows, width = word(args, 1), word(args, 2), word(args, 3), word(args, 4), word(args, 5)
    a_step, a_single, b_step, b_single = word(args, 6), word(args, 7), word(args, 8), word(args, 9)
    stop, rest, zero = 4 * (width - width % LANES), width % LANES, np.float32(0)
    for row in range(rows * thread // threads, rows * (thread + 1) // threads):
        first, second, target = a + row * a_step, b + row * b_step, y + 4 * row * width
        p, q = number_vector(read_f32(first)), number_vector(read_f32(second))
        for at in range(0, stop, 4 * LANES):
            if a_single == 0:
                p = load_f32(first + at)
            if b_single == 0:
                q = load_f32(second + at)
            store_f32(target + at, function(p, q))
        if rest != 0:
            if a_single == 0:
                p = load_first(first + stop, rest, zero)
            if b_single == 0:
                q = load_first(second + stop, rest, zero)
            store_first(target + stop, rest, function(p, q))


@kernel(_WORDS)
def add(args, thread, threads):
    _rows(args, thread, threads, operator.add)


@kernel(_WORDS)
def subtract(args, thread, threads):
    _rows(args, thread, threads, operator.sub)


@kernel(_WORDS)
def multiply(args, thread, threads):
    _rows(args, thread, threads, operator.mul)


@kernel(_WORDS)
def divide(args, thread, threads):
    _rows(args, thread, threads, operator.truediv)
