"""Weights of 4 or 8 bits in blocks, as `MatMulNBits` and `GatherBlockQuantized` have them, unpacked and packed again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import define

from tokenmill_cpu.kernels.packing import interleave_bytes, interleave_nibbles
from tokenmill_cpu.operators.operator import Array, Node, contiguous
from tokenmill_cpu.simd.integer_tile import BLOCK
from tokenmill_cpu.simd.vectors import LANES


def unpack(packed: Array, bits: int) -> Array:
    """uint8 values of bytes, along the last axis; the lower bits come first."""
    if bits == 8:
        return packed
    per_byte = 8 // bits
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    values = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return values.reshape(*packed.shape[:-1], packed.shape[-1] * per_byte)


@define(eq=False)
class BlockWeights:
    """A matrix `[rows, width]` whose item is `scale * (value - zero point)`.

    :param packed: uint8 `[rows, blocks, block size * bits / 8]`.
    :param scales: `[rows, blocks]` float16 or float32.
    :param zero_points: `[rows, blocks]`, float or integer; None is the middle of the range.
    """

    packed: Array
    scales: Array
    zero_points: Array | None
    bits: int
    width: int

    @property
    def rows(self) -> int:
        return self.packed.shape[0]

    @property
    def block_size(self) -> int:
        return self.packed.shape[2] * 8 // self.bits

    @property
    def middle(self) -> int:
        return 1 << (self.bits - 1)

    def dense(self) -> Array:
        """The whole as float32 `[rows, width]`."""
        values = unpack(self.packed, self.bits).astype(np.float32)
        zero = self.middle if self.zero_points is None else self.zero_points.astype(np.float32)[..., None]
        whole = (values - zero) * self.scales.astype(np.float32)[..., None]
        return whole.reshape(self.rows, -1)[:, : self.width]


def matmul_weights(
    packed: Array, scales: Array, zero_points: Array | None, *, rows: int, width: int, bits: int, block_size: int
) -> BlockWeights:
    """From the inputs of a `MatMulNBits`, whose shapes exporters write in several ways.

    :raises ValueError: sizes that do not belong together.
    """
    blocks = -(-width // block_size)
    packed = packed.reshape(rows, blocks, block_size * bits // 8)
    if zero_points is not None:
        if zero_points.dtype == np.uint8:
            zero_points = unpack(zero_points.reshape(rows, -1), bits)[:, :blocks]
        else:
            zero_points = zero_points.reshape(rows, blocks)
    return BlockWeights(packed, scales.reshape(rows, blocks), zero_points, bits, width)


@define(eq=False)
class PackedBlocks:
    """Weights in the layout of `simd.integer_tile`.

    :param offsets: `scale * zero point`; None when all zero points are the middle.
    :param shift: a scale holds for `2**shift` blocks of 32.
    """

    weights: Array
    scales: Array
    offsets: Array | None
    shift: int
    blocks: int

    @property
    def nbytes(self) -> int:
        return self.weights.nbytes + self.scales.nbytes + (0 if self.offsets is None else self.offsets.nbytes)

    @property
    def factor_stride(self) -> int:
        """Bytes of a group's scales."""
        return int(self.scales.strides[0])


#: Relative error up to which scales are kept as float16, for a tenth less to read: that of float32 arithmetic itself.
#: A larger one would be small beside the rounding of activations, but it moves them across the edges of that rounding.
_SCALE_ERROR = 2.0**-22


def pack(source: BlockWeights, node: Node) -> PackedBlocks:
    """Interleave groups of 16 rows."""
    rows, scale_blocks = source.scales.shape
    groups, blocks = -(-rows // LANES), scale_blocks * source.block_size // BLOCK
    weights = np.zeros((groups, blocks, 64 * source.bits), np.uint8)
    packed = contiguous(source.packed)
    kernel = interleave_bytes if source.bits == 8 else interleave_nibbles
    frame = node.frame
    frame.launch(
        kernel, frame.threads, frame.hold(packed), rows, blocks, frame.hold(weights), blocks * BLOCK * source.bits // 8
    )
    scales = source.scales.astype(np.float32)
    offsets = None
    if source.zero_points is not None:
        zero_points = source.zero_points.astype(np.float32)
        if not np.all(zero_points == source.middle):
            offsets = _by_group(scales * zero_points, groups)
    scales = _by_group(scales, groups)
    if _keeps(scales) and (offsets is None or _keeps(offsets)):
        scales = scales.astype(np.float16)
        offsets = None if offsets is None else offsets.astype(np.float16)
    shift = (source.block_size // BLOCK).bit_length() - 1
    return PackedBlocks(weights, scales, offsets, shift, blocks)


def join(parts: Sequence[PackedBlocks]) -> PackedBlocks:
    """Rows of one behind those of another, all of one format; each but the last ends with a whole group."""
    first = parts[0]
    offsets = [part.offsets for part in parts if part.offsets is not None]
    return PackedBlocks(
        np.concatenate([part.weights for part in parts]),
        np.concatenate([part.scales for part in parts]),
        np.concatenate(offsets) if offsets else None,
        first.shift,
        first.blocks,
    )


def _by_group(numbers: Array, groups: int) -> Array:
    """`[rows, blocks]` to `[groups, blocks, 16]`, with zeros for rows that are missing."""
    rows, blocks = numbers.shape
    whole = np.zeros((groups * LANES, blocks), np.float32)
    whole[:rows] = numbers
    return np.ascontiguousarray(whole.reshape(groups, LANES, blocks).transpose(0, 2, 1))


def _keeps(numbers: Array) -> bool:
    """Whether float16 holds each number."""
    with np.errstate(over="ignore"):
        difference = np.abs(numbers.astype(np.float16).astype(np.float32) - numbers)
    return bool(np.all(difference <= _SCALE_ERROR * np.abs(numbers)))
