"""Rotary position embedding: pairs of features turned by an angle that grows with the position."""

from __future__ import annotations

import numpy as np

from tokenmill_cpu.launch import INDEX_OUT_OF_RANGE, inlined, kernel, report, word
from tokenmill_cpu.simd.vectors import (
    LANES,
    fma,
    load_f32,
    load_first,
    read_f32,
    read_i64,
    store_f32,
    store_first,
    write_f32,
)

# Where the row of the angles comes from.
FROM_FIRST, FROM_EACH, FROM_PLACE = 0, 1, 2

#: x, y, positions, cosines, sines; batch, sequence, heads, head size, half of the features that turn; rows of angles,
#: bytes from token to token and from head to head; where the row of the angles comes from.
_WORDS = "qqqqqqqqqqqqqq"


@inlined
def _turn_halves(x, y, cosine, sine, half):
    """Pairs are features i and i + half."""
    stop, rest, zero = 4 * (half - half % LANES), half % LANES, np.float32(0)
    other = 4 * half
    for at in range(0, stop, 4 * LANES):
        a, b, c, s = load_f32(x + at), load_f32(x + other + at), load_f32(cosine + at), load_f32(sine + at)
        store_f32(y + at, fma(a, c, -(b * s)))
        store_f32(y + other + at, fma(a, s, b * c))
    if rest != 0:
        a, b = load_first(x + stop, rest, zero), load_first(x + other + stop, rest, zero)
        c, s = load_first(cosine + stop, rest, zero), load_first(sine + stop, rest, zero)
        store_first(y + stop, rest, fma(a, c, -(b * s)))
        store_first(y + other + stop, rest, fma(a, s, b * c))


@inlined
def _turn_neighbours(x, y, cosine, sine, half):
    """Pairs are features 2 i and 2 i + 1."""
    for at in range(0, 4 * half, 4):
        a, b, c, s = read_f32(x + 2 * at), read_f32(x + 2 * at + 4), read_f32(cosine + at), read_f32(sine + at)
        write_f32(y + 2 * at, a * c - b * s)
        write_f32(y + 2 * at + 4, a * s + b * c)


@inlined
def turn_head(x, y, cosine, sine, half, size, interleaved):
    """Turn the first `2 half` of a head's features; the others pass."""
    if interleaved:
        _turn_neighbours(x, y, cosine, sine, half)
    else:
        _turn_halves(x, y, cosine, sine, half)
    for at in range(8 * half, 4 * size, 4):
        write_f32(y + at, read_f32(x + at))


@inlined
def _turn(args, thread, threads, interleaved):
    x, y, positions, cosine, sine = word(args, 1), word(args, 2), word(args, 3), word(args, 4), word(args, 5)
    batch, sequence, heads, head_size, half = word(args, 6), word(args, 7), word(args, 8), word(args, 9), word(args, 10)
    angles, token_bytes, head_bytes, source = word(args, 11), word(args, 12), word(args, 13), word(args, 14)
    tokens = batch * sequence
    for token in range(tokens * thread // threads, tokens * (thread + 1) // threads):
        row = token
        if source == FROM_EACH:
            row = read_i64(positions + 8 * token)
        elif source == FROM_FIRST:
            row = read_i64(positions) + token % sequence
        if row < 0 or row >= angles:
            report(args, INDEX_OUT_OF_RANGE)
            row = 0
        c, s = cosine + 4 * half * row, sine + 4 * half * row
        start = token // sequence * (4 * sequence * heads * head_size) + token % sequence * token_bytes
        for head in range(heads):
            at = start + head * head_bytes
            turn_head(x + at, y + at, c, s, half, head_size, interleaved)


@kernel(_WORDS)
def turn_halves(args, thread, threads):
    _turn(args, thread, threads, False)


@kernel(_WORDS)
def turn_neighbours(args, thread, threads):
    _turn(args, thread, threads, True)
