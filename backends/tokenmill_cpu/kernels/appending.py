"""New keys and values written behind a past, keys and queries turned on the way."""

from __future__ import annotations

from tokenmill_cpu.kernels.rotary import FROM_EACH, FROM_FIRST, turn_head
from tokenmill_cpu.launch import INDEX_OUT_OF_RANGE, inlined, kernel, report, word
from tokenmill_cpu.simd.vectors import read_f32, read_i64, write_f16, write_f32

# The block. Of query, key and value, of the turned query, and of both caches: the address, and bytes from batch to batch,
# head to head and row to row.
(
    QUERY, QUERY_BATCH, QUERY_HEAD, QUERY_ROW,
    KEY, KEY_BATCH, KEY_HEAD, KEY_ROW,
    VALUE, VALUE_BATCH, VALUE_HEAD, VALUE_ROW,
    TURNED, TURNED_BATCH, TURNED_HEAD, TURNED_ROW,
    KEYS, KEYS_BATCH, KEYS_HEAD, KEYS_ROW,
    VALUES, VALUES_BATCH, VALUES_HEAD, VALUES_ROW,
    # Sequences, rows, query heads to turn, key heads, items of a key and of a value, whether the caches are float16.
    BATCH, ROWS, HEADS, KEY_HEADS, WIDTH, VALUE_WIDTH, NARROW,
    # int64 of each sequence: rows that are new, and the place of the first of these.
    NEW, FIRST,
    # Half of the features that turn, 0 for none; whether neighbours are pairs; tables of `ANGLES` rows; where a row's angles are.
    HALF, INTERLEAVED, COSINE, SINE, ANGLES, POSITIONS, SOURCE,
    # Memory for a head, for each part.
    SCRATCH,
) = range(1, 42)  # fmt: skip


@inlined
def _write_row(source, target, items, narrow):
    if narrow != 0:
        for i in range(items):
            write_f16(target + 2 * i, read_f32(source + 4 * i))
    else:
        for i in range(items):
            write_f32(target + 4 * i, read_f32(source + 4 * i))


@kernel("q" * 41)
def append(args, thread, threads):
    """Split by tokens."""
    rows, width, value_width, narrow = word(args, ROWS), word(args, WIDTH), word(args, VALUE_WIDTH), word(args, NARROW)
    half, interleaved = word(args, HALF), word(args, INTERLEAVED) != 0
    scratch = word(args, SCRATCH) + thread * 4 * width
    tokens = word(args, BATCH) * rows
    for token in range(tokens * thread // threads, tokens * (thread + 1) // threads):
        batch, row = token // rows, token % rows
        if row >= read_i64(word(args, NEW) + 8 * batch):
            continue
        place = read_i64(word(args, FIRST) + 8 * batch) + row
        angle = place
        if word(args, SOURCE) == FROM_EACH:
            angle = read_i64(word(args, POSITIONS) + 8 * token)
        elif word(args, SOURCE) == FROM_FIRST:
            angle = read_i64(word(args, POSITIONS)) + row
        if half > 0 and (angle < 0 or angle >= word(args, ANGLES)):
            report(args, INDEX_OUT_OF_RANGE)
            angle = 0
        cosine, sine = word(args, COSINE) + 4 * half * angle, word(args, SINE) + 4 * half * angle

        x = word(args, QUERY) + batch * word(args, QUERY_BATCH) + row * word(args, QUERY_ROW)
        y = word(args, TURNED) + batch * word(args, TURNED_BATCH) + row * word(args, TURNED_ROW)
        for head in range(word(args, HEADS)):
            turn_head(
                x + head * word(args, QUERY_HEAD),
                y + head * word(args, TURNED_HEAD),
                cosine,
                sine,
                half,
                width,
                interleaved,
            )
        x = word(args, KEY) + batch * word(args, KEY_BATCH) + row * word(args, KEY_ROW)
        y = word(args, KEYS) + batch * word(args, KEYS_BATCH) + place * word(args, KEYS_ROW)
        for head in range(word(args, KEY_HEADS)):
            turn_head(x + head * word(args, KEY_HEAD), scratch, cosine, sine, half, width, interleaved)
            _write_row(scratch, y + head * word(args, KEYS_HEAD), width, narrow)
        x = word(args, VALUE) + batch * word(args, VALUE_BATCH) + row * word(args, VALUE_ROW)
        y = word(args, VALUES) + batch * word(args, VALUES_BATCH) + place * word(args, VALUES_ROW)
        for head in range(word(args, KEY_HEADS)):
            _write_row(x + head * word(args, VALUE_HEAD), y + head * word(args, VALUES_HEAD), value_width, narrow)
