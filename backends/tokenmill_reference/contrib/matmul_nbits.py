"""`MatMulNBits`: a product with a weight that is quantized in blocks along its input features."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenmill_reference.contrib.blocks import per_element, rounded_to_int8, unpack, zero_points_of
from tokenmill_reference.contrib.convention import Array, Attributes, Inputs, Outputs, fits, given, refuse, required

#: Output features that are dequantized at a time: bounds the float32 copy of a vocabulary-sized weight.
ROWS_AT_A_TIME = 4096


def matmul_nbits(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """`A @ dequantized(B).T + bias`.

    Inputs: A `[..., K]` float, B `[N, blocks, block_size * bits / 8] uint8`, scales `[N, blocks]` of A's type, zero
    points (none, packed `[N, ceil(blocks * bits / 8)] uint8`, or `[N, blocks]` float), g_idx `[K] int32` (the block of
    each input feature), bias `[N]`. The product is in float32; with `accuracy_level` 4, A is rounded to int8 first
    where `rounds_activations` says so.
    """
    a, packed = required(inputs, 0, "A"), required(inputs, 1, "B")
    refuse(
        attributes.get("weight_prepacked", 0),
        f"weight_prepacked={attributes.get('weight_prepacked', 0)} of MatMulNBits",
        "the weight is in the private layout of one CUDA device",
        "export without prepacking",
    )
    n, k = int(attributes["N"]), int(attributes["K"])
    bias = given(inputs, 5)
    fits(a, "A", *(None,) * (a.ndim - 1), k)
    fits(bias, "bias", n)
    y = np.zeros((*a.shape[:-1], n), np.float32)
    if packed.size:
        rows = a.astype(np.float32)
        if rounds_activations(inputs, attributes):
            rows = rounded_to_int8(rows, int(attributes["block_size"]))
        for start in range(0, n, ROWS_AT_A_TIME):
            part = slice(start, min(start + ROWS_AT_A_TIME, n))
            y[..., part] = rows @ dequantized(inputs, attributes, part).T
    if bias is not None:
        y += bias.astype(np.float32)
    return [y.astype(a.dtype)]


def rounds_activations(inputs: Inputs, attributes: Attributes) -> bool:
    """Whether A takes part as int8.

    `accuracy_level` 4 permits it, and onnxruntime's CPU provider makes use of that for constant weights of these widths
    and blocks, with packed zero points or none, and in order. Models are exported, and their quality is measured, with
    that rounding: it moves logits by percents, so the definition here has it, too.
    """
    if int(attributes.get("accuracy_level", 0)) != 4:
        return False
    zero_points, group = given(inputs, 3), given(inputs, 4)
    if (zero_points is not None and zero_points.dtype != np.uint8) or (group is not None and group.size):
        return False
    block_sizes = (32, 64, 128) if int(attributes.get("bits", 4)) == 2 else (16, 32, 64, 128, 256)
    return int(attributes["block_size"]) in block_sizes


def dequantized(inputs: Inputs, attributes: Attributes, rows: slice = slice(None)) -> npt.NDArray[np.float32]:
    """The weight of a `MatMulNBits`, `[N, K] float32`, or some of its rows: `(code - zero point) * scale`."""
    n, k = int(attributes["N"]), int(attributes["K"])
    bits, block_size = int(attributes.get("bits", 4)), int(attributes["block_size"])
    refuse(
        bits not in (2, 4, 8),
        f"bits={bits} of MatMulNBits",
        "2, 4 and 8 are defined",
        "export with one of these widths",
    )
    blocks = -(-k // block_size)
    stored_codes = required(inputs, 1, "B")
    refuse(
        stored_codes.size != n * blocks * block_size * bits // 8,
        f"B of shape {list(stored_codes.shape)}",
        f"N={n}, K={k}, block_size={block_size} and bits={bits} require {[n, blocks, block_size * bits // 8]}",
        "export the weight again",
    )
    packed = stored_codes.reshape(n, -1)[rows]
    codes = unpack(packed, bits)[:, :k].astype(np.float32)
    scales = required(inputs, 2, "scales").reshape(n, blocks)[rows].astype(np.float32)
    stored = given(inputs, 3)
    zero_points = zero_points_of(None if stored is None else stored.reshape(n, -1)[rows], bits, scales.shape)
    group = given(inputs, 4)
    refuse(
        group is not None and group.size and (group.size < k or group.min() < 0 or group.max() >= blocks),
        f"g_idx of {0 if group is None else group.size} features",
        f"each of the {k} input features needs a block from 0 to {blocks - 1}",
        "export the weight again",
    )
    return (codes - _spread(zero_points, block_size, k, group)) * _spread(scales, block_size, k, group)


def _spread(blockwise: Array, block_size: int, k: int, group: Array | None) -> Array:
    if group is not None and group.size:
        return blockwise[:, group[:k]]
    return per_element(blockwise, block_size, k)
