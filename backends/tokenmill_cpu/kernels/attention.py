"""Scaled dot-product attention over a cache of float32 or float16: `softmax(cap(scale Q K') + bias) V`.

Two kernels for one block of words. `attend_few` reads each key once for all query heads that share it, and computes along
keys: a row's bits depend on nothing but its query and the keys that it sees. `attend_many` holds 32 query rows side by side
and computes across them, so that products become register tiles. Rows that see no key give zeros.
"""

from __future__ import annotations

import numpy as np

from tokenmill_cpu.launch import device, inlined, kernel, number, word
from tokenmill_cpu.simd.functions import exp, number_vector, tanh
from tokenmill_cpu.simd.tile import dots_of_16, product_tile
from tokenmill_cpu.simd.vectors import (
    LANES,
    largest,
    largest_of,
    load_f16,
    load_f32,
    load_first,
    read_f16,
    read_f32,
    read_i64,
    store_f32,
    sum_of,
    write_f32,
)

#: Query positions up to which `attend_few` is used.
FEW = 8
#: Keys whose rows are at hand together.
BLOCK = 64
#: Query rows side by side.
SIDE = 2 * LANES

# The block. Of query, key, value, output and bias: the address, and bytes from batch to batch, head to head and row to row.
(
    QUERY, QUERY_BATCH, QUERY_HEAD, QUERY_ROW,
    KEY, KEY_BATCH, KEY_HEAD, KEY_ROW,
    VALUE, VALUE_BATCH, VALUE_HEAD, VALUE_ROW,
    OUT, OUT_BATCH, OUT_HEAD, OUT_ROW,
    BIAS, BIAS_BATCH, BIAS_HEAD, BIAS_ROW,
    # Sequences, query heads, query heads to a key head, query rows, items of a key and of a value, whether these are float16.
    BATCH, HEADS, GROUP, ROWS, WIDTH, VALUE_WIDTH, NARROW,
    # int64 of each sequence: keys, query rows, and the position of the first of these.
    KEYS, NEW, FIRST,
    # Whether a query sees no later position; positions that it sees with its own, -1 for all; scores per head, or 0.
    CAUSAL, WINDOW, SINK,
    # Scratch memory, and bytes of it for each part. Cap of the scores, or 0.
    SCRATCH, PART_BYTES, SCALE, SOFTCAP,
) = range(1, 38)  # fmt: skip
_WORDS = "q" * 35 + "dd"

_LOWEST = np.float32(-np.inf)

_row_by_4 = product_tile(1, 4, accumulate=True)
_row_by_1 = product_tile(1, 1, accumulate=True)
_scores_of_8 = product_tile(8, 2)
_scores_of_1 = product_tile(1, 2)
_values_of_8 = product_tile(8, 2, accumulate=True)
_values_of_1 = product_tile(1, 2, accumulate=True)


def padded(items: int) -> int:
    """Up to a multiple of a vector."""
    return items + -items % LANES


def few_bytes(rows: int, keys: int, width: int, value_width: int) -> int:
    """Scratch of a part of `attend_few` that has so many query rows of all heads that share a key head."""
    widths = padded(width) + padded(value_width)
    return 4 * (rows * (widths + padded(keys)) + BLOCK * max(padded(width), padded(value_width)))


def many_bytes(keys: int, width: int, value_width: int) -> int:
    """Scratch of a part of `attend_many`."""
    return 4 * (SIDE * (width + keys + value_width + 1) + BLOCK * max(width, value_width))


@device
def _copy_rows(source, stride, count, width, narrow, target, target_stride):
    """Rows of float32 or float16 as float32, with zeros behind each up to the stride of the target."""
    whole = width - width % LANES
    for row in range(count):
        a, b = source + row * stride, target + row * target_stride
        if narrow != 0:
            for i in range(0, whole, LANES):
                store_f32(b + 4 * i, load_f16(a + 2 * i))
            for i in range(whole, width):
                write_f32(b + 4 * i, read_f16(a + 2 * i))
        else:
            for i in range(0, whole, LANES):
                store_f32(b + 4 * i, load_f32(a + 4 * i))
            for i in range(whole, width):
                write_f32(b + 4 * i, read_f32(a + 4 * i))
        for at in range(4 * width, target_stride, 4):
            write_f32(b + at, np.float32(0))


@inlined
def _start(args, position):
    """The first key that a query at this position sees."""
    window = word(args, WINDOW)
    return max(0, position + 1 - window) if window >= 0 else 0


@inlined
def _stop(args, position, keys):
    """Behind the last key that a query at this position sees."""
    return max(0, min(keys, position + 1)) if word(args, CAUSAL) != 0 else keys


@inlined
def _softmax_row(row, start, stop, cap, bias, sink):
    """Replace the scores from start to stop by their exponentials; gives the sum of these. Beyond, up to vectors' ends, 0."""
    first, last = start - start % LANES, stop + (LANES - stop % LANES) % LANES
    if cap != 0 or bias != 0:
        for key in range(first, last, LANES):
            x = load_f32(row + 4 * key)
            if cap != 0:
                x = tanh(x / number_vector(cap)) * number_vector(cap)
            if bias != 0:
                if key + LANES <= stop:
                    x = x + load_f32(bias + 4 * key)
                else:
                    x = x + load_first(bias + 4 * key, stop - key, np.float32(0))
            store_f32(row + 4 * key, x)
    for key in range(first, start):
        write_f32(row + 4 * key, _LOWEST)
    for key in range(stop, last):
        write_f32(row + 4 * key, _LOWEST)
    # Not below the lowest finite number, so that a row of -inf gives zeros and not NaN.
    peaks = number_vector(max(sink, np.float32(-3e38)))
    for key in range(first, last, LANES):
        peaks = largest(peaks, load_f32(row + 4 * key))
    top = number_vector(largest_of(peaks))
    total = number_vector(0.0)
    for key in range(first, last, LANES):
        p = exp(load_f32(row + 4 * key) - top)
        total = total + p
        store_f32(row + 4 * key, p)
    return sum_of(total) + largest_of(exp(number_vector(sink) - top))


@inlined
def _few(args, batch, head, count, scratch):
    """All rows of `count` query heads that share one key head."""
    group, rows, width, value_width = word(args, GROUP), word(args, ROWS), word(args, WIDTH), word(args, VALUE_WIDTH)
    keys, new, position = (
        read_i64(word(args, KEYS) + 8 * batch),
        read_i64(word(args, NEW) + 8 * batch),
        read_i64(word(args, FIRST) + 8 * batch),
    )
    narrow, scale, sinks = word(args, NARROW), number_vector(number(args, SCALE)), word(args, SINK)
    key = word(args, KEY) + batch * word(args, KEY_BATCH) + head // group * word(args, KEY_HEAD)
    value = word(args, VALUE) + batch * word(args, VALUE_BATCH) + head // group * word(args, VALUE_HEAD)
    key_row, value_row = word(args, KEY_ROW), word(args, VALUE_ROW)
    query_bytes, value_bytes = 4 * (width + -width % LANES), 4 * (value_width + -value_width % LANES)
    score_bytes = 4 * (keys + -keys % LANES)
    total_rows = count * new
    queries = scratch
    scores = queries + total_rows * query_bytes
    sums = scores + total_rows * score_bytes
    block = sums + total_rows * value_bytes

    for row in range(total_rows):
        source = word(args, QUERY) + batch * word(args, QUERY_BATCH)
        source += (head + row // new) * word(args, QUERY_HEAD) + row % new * word(args, QUERY_ROW)
        _copy_rows(source, 0, 1, width, 0, queries + row * query_bytes, query_bytes)
        for at in range(0, query_bytes, 4 * LANES):
            place = queries + row * query_bytes + at
            store_f32(place, load_f32(place) * scale)

    low, high = _start(args, position), _stop(args, position + new - 1, keys)
    direct = narrow == 0 and query_bytes == 4 * width
    for at in range(low - low % LANES, high, LANES):
        place, stride = key + at * key_row, key_row
        if not direct or at + LANES > keys:
            _copy_rows(place, stride, min(LANES, keys - at), width, narrow, block, query_bytes)
            place, stride = block, query_bytes
        for row in range(total_rows):
            dots_of_16(
                queries + row * query_bytes,
                place,
                stride,
                query_bytes // (4 * LANES),
                scores + row * score_bytes + 4 * at,
            )

    for row in range(total_rows):
        start, stop = _start(args, position + row % new), _stop(args, position + row % new, keys)
        line, bias, sink = scores + row * score_bytes, word(args, BIAS), _LOWEST
        if bias != 0:
            bias += batch * word(args, BIAS_BATCH) + (head + row // new) * word(args, BIAS_HEAD)
            bias += row % new * word(args, BIAS_ROW)
        if sinks != 0:
            sink = read_f32(sinks + 4 * (head + row // new))
        total = np.float32(0)
        if start < stop:
            total = _softmax_row(line, start, stop, number(args, SOFTCAP), bias, sink)
        # The scores of the row are no longer wanted where its sum is kept.
        place = queries + row * query_bytes
        write_f32(place, total)
        for at in range(0, value_bytes, 4 * LANES):
            store_f32(sums + row * value_bytes + at, number_vector(0.0))

    direct = narrow == 0 and value_bytes == 4 * value_width
    for at in range(low, high, BLOCK):
        place, stride, end = value + at * value_row, value_row, min(high, at + BLOCK)
        if not direct:
            _copy_rows(place, stride, end - at, value_width, narrow, block, value_bytes)
            place, stride = block, value_bytes
        for row in range(total_rows):
            start = max(at, _start(args, position + row % new))
            stop = min(end, _stop(args, position + row % new, keys))
            if start < stop:
                weights, b = scores + row * score_bytes + 4 * start, place + (start - at) * stride
                c = sums + row * value_bytes
                for column in range(0, value_bytes - 15 * LANES, 16 * LANES):
                    _row_by_4(weights, 0, 4, b + column, stride, stop - start, c + column, 0)
                for column in range(value_bytes - value_bytes % (16 * LANES), value_bytes, 4 * LANES):
                    _row_by_1(weights, 0, 4, b + column, stride, stop - start, c + column, 0)

    for row in range(count * rows):
        out = word(args, OUT) + batch * word(args, OUT_BATCH)
        out += (head + row // rows) * word(args, OUT_HEAD) + row % rows * word(args, OUT_ROW)
        held = row // rows * new + row % rows
        total = read_f32(queries + held * query_bytes) if row % rows < new else np.float32(0)
        for i in range(value_width):
            y = np.float32(0)
            if total != 0:
                y = read_f32(sums + held * value_bytes + 4 * i) / total
            write_f32(out + 4 * i, y)


@kernel(_WORDS)
def attend_few(args, thread, threads):
    """Split by query heads."""
    heads, group = word(args, HEADS), word(args, GROUP)
    units = word(args, BATCH) * heads
    scratch = word(args, SCRATCH) + thread * word(args, PART_BYTES)
    unit, end = units * thread // threads, units * (thread + 1) // threads
    while unit < end:
        head = unit % heads
        count = min(end - unit, group - head % group)
        _few(args, unit // heads, head, count, scratch)
        unit += count


@inlined
def _many(args, batch, key_head, block, scratch):
    """32 query rows: positions one after the other, and of each the query heads that share a key head."""
    group, rows, width, value_width = word(args, GROUP), word(args, ROWS), word(args, WIDTH), word(args, VALUE_WIDTH)
    keys, new, position = (
        read_i64(word(args, KEYS) + 8 * batch),
        read_i64(word(args, NEW) + 8 * batch),
        read_i64(word(args, FIRST) + 8 * batch),
    )
    narrow, scale, sinks = word(args, NARROW), np.float32(number(args, SCALE)), word(args, SINK)
    key = word(args, KEY) + batch * word(args, KEY_BATCH) + key_head * word(args, KEY_HEAD)
    value = word(args, VALUE) + batch * word(args, VALUE_BATCH) + key_head * word(args, VALUE_HEAD)
    key_row, value_row = word(args, KEY_ROW), word(args, VALUE_ROW)
    side = 4 * SIDE
    queries = scratch
    sums = queries + width * side
    last_scores = sums + value_width * side
    at_hand = last_scores + side
    scores = at_hand + 4 * BLOCK * max(width, value_width)

    # Lanes behind the last row repeat it.
    begin, behind = block * SIDE, group * new
    low, high = _start(args, position + begin // group), 0
    for lane in range(SIDE):
        row = max(0, min(begin + lane, behind - 1))
        source = word(args, QUERY) + batch * word(args, QUERY_BATCH)
        source += (key_head * group + row % group) * word(args, QUERY_HEAD) + row // group * word(args, QUERY_ROW)
        for i in range(width):
            write_f32(queries + i * side + 4 * lane, read_f32(source + 4 * i) * scale)
        sink = _LOWEST
        if sinks != 0:
            sink = read_f32(sinks + 4 * (key_head * group + row % group))
        write_f32(last_scores + 4 * lane, sink)
        high = max(high, _stop(args, position + row // group, keys))
    if begin >= behind:
        high = low

    for at in range(low, high, BLOCK):
        place, stride, end = key + at * key_row, key_row, min(high, at + BLOCK)
        if narrow != 0:
            _copy_rows(place, stride, end - at, width, narrow, at_hand, 4 * width)
            place, stride = at_hand, 4 * width
        line, row = scores + (at - low) * side, 0
        while row + 8 <= end - at:
            _scores_of_8(place + row * stride, stride, 4, queries, side, width, line + row * side, side)
            row += 8
        while row < end - at:
            _scores_of_1(place + row * stride, stride, 4, queries, side, width, line + row * side, side)
            row += 1

    cap, bias = number(args, SOFTCAP), word(args, BIAS)
    if cap != 0:
        for place in range(scores, scores + (high - low) * side, 4 * LANES):
            store_f32(place, tanh(load_f32(place) / number_vector(cap)) * number_vector(cap))
    for lane in range(SIDE):
        row = max(0, min(begin + lane, behind - 1))
        start, stop = _start(args, position + row // group), _stop(args, position + row // group, keys)
        place = scores + 4 * lane - low * side
        if bias != 0:
            line = bias + batch * word(args, BIAS_BATCH) + row // group * word(args, BIAS_ROW)
            line += (key_head * group + row % group) * word(args, BIAS_HEAD)
            for at in range(start, stop):
                write_f32(place + at * side, read_f32(place + at * side) + read_f32(line + 4 * at))
        for at in range(low, min(start, high)):
            write_f32(place + at * side, _LOWEST)
        for at in range(max(stop, low), high):
            write_f32(place + at * side, _LOWEST)

    lowest = number_vector(-3e38)
    top_a, top_b = largest(lowest, load_f32(last_scores)), largest(lowest, load_f32(last_scores + 4 * LANES))
    for place in range(scores, scores + (high - low) * side, side):
        top_a, top_b = largest(top_a, load_f32(place)), largest(top_b, load_f32(place + 4 * LANES))
    total_a, total_b = exp(load_f32(last_scores) - top_a), exp(load_f32(last_scores + 4 * LANES) - top_b)
    for place in range(scores, scores + (high - low) * side, side):
        a, b = exp(load_f32(place) - top_a), exp(load_f32(place + 4 * LANES) - top_b)
        total_a, total_b = total_a + a, total_b + b
        store_f32(place, a)
        store_f32(place + 4 * LANES, b)
    store_f32(last_scores, total_a)
    store_f32(last_scores + 4 * LANES, total_b)

    for place in range(sums, sums + value_width * side, 4 * LANES):
        store_f32(place, number_vector(0.0))
    for at in range(low, high, BLOCK):
        place, stride, end = value + at * value_row, value_row, min(high, at + BLOCK)
        if narrow != 0:
            _copy_rows(place, stride, end - at, value_width, narrow, at_hand, 4 * value_width)
            place, stride = at_hand, 4 * value_width
        line, i = scores + (at - low) * side, 0
        while i + 8 <= value_width:
            _values_of_8(place + 4 * i, 4, stride, line, side, end - at, sums + i * side, side)
            i += 8
        while i < value_width:
            _values_of_1(place + 4 * i, 4, stride, line, side, end - at, sums + i * side, side)
            i += 1

    for lane in range(SIDE):
        row = begin + lane
        if row < group * rows:
            out = word(args, OUT) + batch * word(args, OUT_BATCH)
            out += (key_head * group + row % group) * word(args, OUT_HEAD) + row // group * word(args, OUT_ROW)
            total = read_f32(last_scores + 4 * lane)
            for i in range(value_width):
                y = np.float32(0)
                if total != 0 and row < behind:
                    y = read_f32(sums + i * side + 4 * lane) / total
                write_f32(out + 4 * i, y)


@kernel(_WORDS)
def attend_many(args, thread, threads):
    """Split by blocks of rows, in turns: later ones see more keys."""
    group, rows = word(args, GROUP), word(args, ROWS)
    key_heads, blocks = word(args, HEADS) // group, (group * rows + SIDE - 1) // SIDE
    scratch = word(args, SCRATCH) + thread * word(args, PART_BYTES)
    for unit in range(thread, word(args, BATCH) * key_heads * blocks, threads):
        _many(args, unit // (key_heads * blocks), unit // blocks % key_heads, unit % blocks, scratch)
