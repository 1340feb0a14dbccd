"""Weights of 4 and 8 bits from rows of blocks to groups of 16 rows, as `simd.integer_tile` reads them."""

from __future__ import annotations

from tokenmill_cpu.launch import kernel, word
from tokenmill_cpu.simd.integer_tile import BLOCK
from tokenmill_cpu.simd.vectors import LANES, read_u32, write_u32


@kernel("qqqqq")
def interleave_bytes(args, thread, threads):
    """Words: source, rows, blocks, target, bytes of a row. Four items of each row lie side by side. Split by groups."""
    source, rows, blocks, target, stride = word(args, 1), word(args, 2), word(args, 3), word(args, 4), word(args, 5)
    groups = (rows + LANES - 1) // LANES
    for group in range(groups * thread // threads, groups * (thread + 1) // threads):
        for lane in range(min(LANES, rows - group * LANES)):
            row = source + (group * LANES + lane) * stride
            place = target + group * blocks * BLOCK * LANES + 4 * lane
            for step in range(blocks * BLOCK // 4):
                write_u32(place + step * 4 * LANES, read_u32(row + 4 * step))


@kernel("qqqqq")
def interleave_nibbles(args, thread, threads):
    """The words of `interleave_bytes`. Items of a block's first half lie in low nibbles, of its second one in high nibbles."""
    source, rows, blocks, target, stride = word(args, 1), word(args, 2), word(args, 3), word(args, 4), word(args, 5)
    groups = (rows + LANES - 1) // LANES
    for group in range(groups * thread // threads, groups * (thread + 1) // threads):
        for lane in range(min(LANES, rows - group * LANES)):
            row = source + (group * LANES + lane) * stride
            place = target + group * blocks * BLOCK // 2 * LANES + 4 * lane
            for _ in range(blocks):
                for pair in range(2):
                    low, high = read_u32(row + 4 * pair), read_u32(row + 8 + 4 * pair)
                    for half in range(2):
                        # Two bytes hold four items: one of each goes to a byte of its own.
                        first, second = low >> (16 * half) & 0xFFFF, high >> (16 * half) & 0xFFFF
                        first = (first & 0xF) | (first & 0xF0) << 4 | (first & 0xF00) << 8 | (first & 0xF000) << 12
                        second = (second & 0xF) | (second & 0xF0) << 4 | (second & 0xF00) << 8 | (second & 0xF000) << 12
                        write_u32(place, first | second << 4)
                        place += 4 * LANES
                row += BLOCK // 2
