"""Block quantization as the `com.microsoft` operators store it: packed codes, and a scale and zero point per block."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenmill_reference.contrib.convention import Array


def unpack(packed: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """Codes of `bits` (2, 4, 8) from bytes, low-order bits first, along the last axis."""
    if bits == 8:
        return packed
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (packed[..., np.newaxis] >> shifts) & np.uint8(2**bits - 1)
    return codes.reshape(*packed.shape[:-1], -1)


def unpack_bitstream(packed: npt.NDArray[np.uint8], bits: int, count: int) -> npt.NDArray[np.uint8]:
    """`count` codes of any width from a low-order-first stream of bits along the last axis; codes may cross bytes."""
    stream = np.unpackbits(packed, axis=-1, bitorder="little")[..., : count * bits]
    planes = stream.reshape(*packed.shape[:-1], count, bits)
    return (planes << np.arange(bits, dtype=np.uint8)).sum(axis=-1, dtype=np.uint8)


def zero_points_of(
    zero_points: Array | None, bits: int, shape: tuple[int, ...], default: float | None = None
) -> npt.NDArray[np.float32]:
    """Zero points as float32 of the scales' shape: omitted (the middle of the range), packed bytes, or plain values."""
    if zero_points is None:
        return np.full(shape, 2 ** (bits - 1) if default is None else default, np.float32)
    if zero_points.dtype == np.uint8:
        rows = zero_points.reshape(*shape[:-1], -1)
        return unpack(rows, bits)[..., : shape[-1]].astype(np.float32)
    return zero_points.reshape(shape).astype(np.float32)


def per_element(blockwise: Array, block_size: int, extent: int, axis: int = -1) -> Array:
    """One value per block to one per element; the last block may be cut short by the extent."""
    repeated = np.repeat(blockwise, block_size, axis=axis)
    return np.take(repeated, np.arange(extent), axis=axis) if repeated.shape[axis] != extent else repeated


def rounded_to_int8(rows: npt.NDArray[np.float32], block_size: int) -> npt.NDArray[np.float32]:
    """Each block of features to the nearest of the 255 multiples of its largest magnitude / 127, ties to even."""
    extent = rows.shape[-1]
    padded = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, -extent % block_size)])
    blocks = padded.reshape(*rows.shape[:-1], -1, block_size)
    largest = np.abs(blocks).max(axis=-1, keepdims=True, initial=0)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    codes = np.rint(blocks * inverse)
    return (codes * (largest / np.float32(127))).reshape(padded.shape)[..., :extent]
