"""Weights as blocks of 32 codes with a scale, the form of `MatMulNBits` and `GatherBlockQuantized`.

A weight is `(code - zero point) * scale`. Layouts of GGUF's types are those of ggml's published block structures; `d` and
`m` are float16. Carried over as they are: Q4_0, Q5_0 and Q8_0 to the bit; Q4_1, whose zero point is rounded to float32,
within one float32 ulp of the largest weight that the block can hold (two where its range is thousands of times farther
from zero than it is wide, which no quantizer writes). Everything else is rounded to the nearest of 256 codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from attrs import evolve, frozen
from gguf import GGMLQuantizationType, ReaderTensor, dequantize
from numpy.typing import NDArray
from tokenmill.errors import SourceError

BLOCK = 32
_ROWS = 4096


@frozen(kw_only=True, eq=False)
class Blocks:
    """:param codes: `[rows, columns] uint8`.
    :param scales: `[rows, columns / 32] float32`.
    :param zero_points: the same shape, `float32` (4 bits only) or `uint8` (8 bits); None is the middle, 8 or 128.
    """

    bits: int
    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zero_points: NDArray[Any] | None = None

    @property
    def form(self) -> tuple[int, str | None]:
        """Bits and the type of zero points; equal for blocks that can share a matrix."""
        return self.bits, None if self.zero_points is None else self.zero_points.dtype.name

    @property
    def packed(self) -> NDArray[np.uint8]:
        """`[rows, columns / 32, 4 * bits] uint8`: of two 4-bit codes in a byte the first is in the low bits."""
        rows, columns = self.codes.shape
        codes = self.codes if self.bits == 8 else np.bitwise_or(self.codes[:, 0::2], self.codes[:, 1::2] << 4)
        return codes.reshape(rows, columns // BLOCK, BLOCK * self.bits // 8)

    def values(self) -> NDArray[np.float32]:
        """`[rows, columns] float32`, rounded as the operators' definition has it."""
        zero_points = self.zero_points if self.zero_points is not None else np.float32(1 << (self.bits - 1))
        codes = self.codes.reshape(*self.scales.shape, BLOCK).astype(np.float32)
        offset = np.broadcast_to(zero_points, self.scales.shape).astype(np.float32)[..., None]
        return ((codes - offset) * self.scales[..., None]).reshape(self.codes.shape)

    def rows(self, order: NDArray[np.intp]) -> Blocks:
        """The same rows in another order."""
        return self._each(lambda part: part[order])

    def _each(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Blocks:
        zero_points = None if self.zero_points is None else change(self.zero_points)
        return evolve(self, codes=change(self.codes), scales=change(self.scales), zero_points=zero_points)


def stacked(parts: list[Blocks]) -> Blocks:
    """One above the other; all of one form."""
    first = parts[0]
    zero_points = None
    if first.zero_points is not None:
        zero_points = np.concatenate([part.zero_points for part in parts if part.zero_points is not None])
    return Blocks(
        bits=first.bits,
        codes=np.concatenate([part.codes for part in parts]),
        scales=np.concatenate([part.scales for part in parts]),
        zero_points=zero_points,
    )


def read_blocks(tensor: ReaderTensor) -> Blocks:
    """A matrix as blocks.

    :raises SourceError: a type that is not known, rows that are no multiple of 32, or scales that are not finite.
    """
    known = {**_CARRIED, **_ROUNDED}
    if tensor.tensor_type not in known:
        raise SourceError(
            f"the tensor '{tensor.name}' has the type {tensor.tensor_type.name}, which cannot be imported",
            why=f"known are {', '.join(kind.name for kind in known)}",
            remedy="use a file with weights of a known type",
        )
    if int(tensor.shape[0]) % BLOCK:
        raise SourceError(
            f"the tensor '{tensor.name}' has rows of {int(tensor.shape[0])} weights",
            why=f"weights are kept in blocks of {BLOCK}",
            remedy="export the model to ONNX instead",
        )
    read = known[tensor.tensor_type]
    # What is not finite is refused below, in words.
    with np.errstate(invalid="ignore", over="ignore"):
        blocks = stacked([read(tensor.data[start : start + _ROWS]) for start in range(0, len(tensor.data), _ROWS)])
    if not np.isfinite(blocks.scales).all() or (
        blocks.zero_points is not None and not np.isfinite(blocks.zero_points).all()
    ):
        raise SourceError(f"the tensor '{tensor.name}' has weights that are not finite", remedy="fetch the file again")
    return blocks


def rounds(kind: GGMLQuantizationType) -> bool:
    """Whether weights of the type are rounded on import."""
    return kind in _ROUNDED


# --- types that are carried over ---------------------------------------------------------------------------------------


def _fields(data: NDArray[np.uint8], *sizes: int) -> list[NDArray[np.uint8]]:
    """A row of blocks, cut into its blocks' fields: `[rows, blocks, size] uint8` each."""
    blocks = data.reshape(len(data), -1, sum(sizes))
    ends = np.cumsum(sizes)
    return [np.ascontiguousarray(blocks[..., end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def _halves(field: NDArray[np.uint8]) -> NDArray[np.float32]:
    """One float16 a block: `[rows, blocks] float32`."""
    return field.view(np.float16)[..., 0].astype(np.float32)


def _nibbles(field: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """32 codes a block: the low halves of 16 bytes, then the high ones."""
    return np.concatenate([field & 15, field >> 4], axis=-1)


def _flat(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return codes.reshape(len(codes), -1)


def _q4_0(data: NDArray[np.uint8]) -> Blocks:
    """`d * (code - 8)`."""
    d, codes = _fields(data, 2, 16)
    return Blocks(bits=4, codes=_flat(_nibbles(codes)), scales=_halves(d))


def _q4_1(data: NDArray[np.uint8]) -> Blocks:
    """`d * code + m`, so the zero point is `-m / d`; a block with d = 0 is m throughout: `(0 - -1) * m`."""
    d, m, packed = _fields(data, 2, 2, 16)
    scales, minima, codes = _halves(d), _halves(m), _nibbles(packed)
    constant = scales == 0
    codes[constant] = 0
    zero_points = np.where(constant, np.float32(-1), -minima / np.where(constant, np.float32(1), scales))
    return Blocks(bits=4, codes=_flat(codes), scales=np.where(constant, minima, scales), zero_points=zero_points)


def _q5_0(data: NDArray[np.uint8]) -> Blocks:
    """`d * (code - 16)`, the fifth bits in a word of their own."""
    d, high, packed = _fields(data, 2, 4, 16)
    codes = np.bitwise_or(_nibbles(packed), np.unpackbits(high, axis=-1, bitorder="little") << 4)
    return Blocks(bits=8, codes=_flat(codes + np.uint8(128 - 16)), scales=_halves(d))


def _q8_0(data: NDArray[np.uint8]) -> Blocks:
    """`d * code`, signed."""
    d, codes = _fields(data, 2, BLOCK)
    return Blocks(bits=8, codes=_flat(codes ^ np.uint8(128)), scales=_halves(d))


# --- types that are rounded --------------------------------------------------------------------------------------------


def _symmetric(weights: NDArray[np.float32]) -> Blocks:
    """The largest magnitude of a block is 127 steps."""
    blocks = weights.reshape(len(weights), -1, BLOCK)
    scales = np.abs(blocks).max(axis=-1) / np.float32(127)
    steps = blocks / np.where(scales == 0, np.float32(1), scales)[..., None]
    codes = np.clip(np.rint(np.nan_to_num(steps)) + 128, 0, 255).astype(np.uint8)
    return Blocks(bits=8, codes=_flat(codes), scales=scales)


def _lopsided(weights: NDArray[np.float32]) -> Blocks:
    """The range of a block, zero included, is 255 steps."""
    blocks = weights.reshape(len(weights), -1, BLOCK)
    low, high = np.minimum(blocks.min(axis=-1), 0), np.maximum(blocks.max(axis=-1), 0)
    scales = (high - low) / np.float32(255)
    step = np.where(scales == 0, np.float32(1), scales)
    zero_points = np.rint(np.nan_to_num(-low / step))
    codes = np.clip(np.rint(np.nan_to_num(blocks / step[..., None])) + zero_points[..., None], 0, 255)
    return Blocks(bits=8, codes=_flat(codes.astype(np.uint8)), scales=scales, zero_points=zero_points.astype(np.uint8))


def _rounding(kind: GGMLQuantizationType, fit: Callable[[NDArray[np.float32]], Blocks]) -> Callable[[Any], Blocks]:
    return lambda data: fit(np.asarray(dequantize(data, kind), np.float32))


_Q = GGMLQuantizationType
_CARRIED: Mapping[GGMLQuantizationType, Callable[[Any], Blocks]] = {
    _Q.Q4_0: _q4_0,
    _Q.Q4_1: _q4_1,
    _Q.Q5_0: _q5_0,
    _Q.Q8_0: _q8_0,
}
_ROUNDED: Mapping[GGMLQuantizationType, Callable[[Any], Blocks]] = {
    **{kind: _rounding(kind, _lopsided) for kind in (_Q.Q5_1, _Q.Q4_K, _Q.Q5_K)},
    **{kind: _rounding(kind, _symmetric) for kind in (_Q.Q6_K, _Q.F16, _Q.BF16, _Q.F32)},
}
