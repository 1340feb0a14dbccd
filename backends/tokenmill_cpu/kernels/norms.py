"""Root-mean-square and layer normalization of rows, after the addition of a skip and a bias when there are any.

A row is summed in an order that depends on its width alone.
"""

from __future__ import annotations

import math

import numpy as np

from tokenmill_cpu.launch import inlined, kernel, number, word
from tokenmill_cpu.simd.functions import number_vector
from tokenmill_cpu.simd.vectors import LANES, fma, load_f32, load_first, store_f32, store_first, sum_of, write_f32

#: x, skip, bias, gamma, beta, y, total, mean, factor (addresses; all but x, gamma and y may be 0), rows, width, rows of
#: skip, epsilon. The total may be y.
_WORDS = "qqqqqqqqqqqqd"


@inlined
def _add(x, skip, bias, total, width):
    """total = x + skip (+ bias)."""
    stop = 4 * (width - width % LANES)
    for at in range(0, stop, 4 * LANES):
        value = load_f32(x + at) + load_f32(skip + at)
        if bias != 0:
            value = value + load_f32(bias + at)
        store_f32(total + at, value)
    rest, zero = width % LANES, np.float32(0)
    if rest != 0:
        value = load_first(x + stop, rest, zero) + load_first(skip + stop, rest, zero)
        if bias != 0:
            value = value + load_first(bias + stop, rest, zero)
        store_first(total + stop, rest, value)


@inlined
def _mean(x, width):
    a, b = number_vector(0.0), number_vector(0.0)
    c, d = number_vector(0.0), number_vector(0.0)
    fours, stop = width - width % (4 * LANES), width - width % LANES
    for at in range(0, 4 * fours, 16 * LANES):
        a = a + load_f32(x + at)
        b = b + load_f32(x + at + 4 * LANES)
        c = c + load_f32(x + at + 8 * LANES)
        d = d + load_f32(x + at + 12 * LANES)
    for at in range(4 * fours, 4 * stop, 4 * LANES):
        a = a + load_f32(x + at)
    if stop < width:
        b = b + load_first(x + 4 * stop, width - stop, np.float32(0))
    return np.float32(sum_of((a + b) + (c + d)) / width)


@inlined
def _mean_square(x, width, mean):
    """Mean of (x - mean) ** 2."""
    center = number_vector(mean)
    a, b = number_vector(0.0), number_vector(0.0)
    c, d = number_vector(0.0), number_vector(0.0)
    fours, stop = width - width % (4 * LANES), width - width % LANES
    for at in range(0, 4 * fours, 16 * LANES):
        p = load_f32(x + at) - center
        q = load_f32(x + at + 4 * LANES) - center
        r = load_f32(x + at + 8 * LANES) - center
        s = load_f32(x + at + 12 * LANES) - center
        a, b, c, d = fma(p, p, a), fma(q, q, b), fma(r, r, c), fma(s, s, d)
    for at in range(4 * fours, 4 * stop, 4 * LANES):
        p = load_f32(x + at) - center
        a = fma(p, p, a)
    if stop < width:
        p = load_first(x + 4 * stop, width - stop, np.float32(mean)) - center
        b = fma(p, p, b)
    return sum_of((a + b) + (c + d)) / width


@inlined
def _scale(x, gamma, beta, y, width, mean, factor):
    """y = (x - mean) * factor * gamma (+ beta)."""
    center, factors = number_vector(mean), number_vector(factor)
    stop = 4 * (width - width % LANES)
    for at in range(0, stop, 4 * LANES):
        value = (load_f32(x + at) - center) * factors
        if beta == 0:
            value = value * load_f32(gamma + at)
        else:
            value = fma(value, load_f32(gamma + at), load_f32(beta + at))
        store_f32(y + at, value)
    rest, zero = width % LANES, np.float32(0)
    if rest != 0:
        value = (load_first(x + stop, rest, zero) - center) * factors
        if beta == 0:
            value = value * load_first(gamma + stop, rest, zero)
        else:
            value = fma(value, load_first(gamma + stop, rest, zero), load_first(beta + stop, rest, zero))
        store_first(y + stop, rest, value)


@inlined
def _normalize(args, thread, threads, centered):
    x, skip, bias, gamma, beta, y = (
        word(args, 1),
        word(args, 2),
        word(args, 3),
        word(args, 4),
        word(args, 5),
        word(args, 6),
    )
    total, means, factors = word(args, 7), word(args, 8), word(args, 9)
    rows, width, skip_rows, epsilon = word(args, 10), word(args, 11), word(args, 12), number(args, 13)
    for row in range(rows * thread // threads, rows * (thread + 1) // threads):
        offset = 4 * width * row
        source = x + offset
        if skip != 0:
            source = total + offset
            _add(x + offset, skip + 4 * width * (row % skip_rows), bias, source, width)
        mean = _mean(source, width) if centered else np.float32(0)
        factor = np.float32(1.0 / math.sqrt(_mean_square(source, width, mean) + epsilon))
        _scale(source, gamma, beta, y + offset, width, mean, factor)
        if means != 0:
            write_f32(means + 4 * row, mean)
        if factors != 0:
            write_f32(factors + 4 * row, factor)


@kernel(_WORDS)
def rms_norm(args, thread, threads):
    """(x + skip + bias) / sqrt(mean of its squares + epsilon) * gamma."""
    _normalize(args, thread, threads, False)


@kernel(_WORDS)
def layer_norm(args, thread, threads):
    """The same of what is left when the row's mean is taken off, plus beta."""
    _normalize(args, thread, threads, True)
