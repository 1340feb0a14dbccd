"""`GatherBlockQuantized`: rows of a block-quantized table, dequantized."""

from __future__ import annotations

from typing import Any

import numpy as np

from tokenmill_reference.contrib.blocks import per_element, unpack, zero_points_of
from tokenmill_reference.contrib.convention import Array, Attributes, Inputs, Outputs, given, refuse, required


def gather_block_quantized(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """`(codes - zero points) * scales` of the gathered slices; an index out of range gives zeros.

    Inputs: data (int4, uint4; uint8 with 2, 4 or 8 `bits` a code, packed along the last axis; or an 8- or 4-bit float),
    indices, scales (of the output's type), zero points (of data's type and packing). An omitted zero point is 0 for
    int4 and uint4, the middle of the range for uint8. `block_size` 0 is one block along the axis.
    """
    data, indices, scales = (required(inputs, i, name) for i, name in enumerate(("data", "indices", "scales")))
    zero_points = given(inputs, 3)
    rank = data.ndim
    gather_axis = int(attributes.get("gather_axis", 0)) % rank
    quantize_axis = int(attributes.get("quantize_axis", 1)) % rank
    bits = int(attributes.get("bits", 4))
    packed = data.dtype == np.uint8
    integer = packed or data.dtype.name in ("int4", "uint4")
    refuse(
        packed and bits < 8 and gather_axis == rank - 1,
        f"gather_axis={gather_axis} of GatherBlockQuantized with packed uint8 data of rank {rank}",
        "it would gather inside of bytes",
        "gather along another axis",
    )
    count = data.shape[gather_axis]
    inside = (indices >= -count) & (indices < count)
    rows = np.where(inside, indices % max(count, 1), 0)

    codes = np.take(data, rows, axis=gather_axis)
    if packed:
        codes = unpack(codes, bits)
    extent = data.shape[quantize_axis] * (8 // bits if packed and quantize_axis == rank - 1 else 1)
    block_size = int(attributes.get("block_size", 128)) or extent

    offsets: Array | None = None
    if integer:
        default = None if packed else 0
        offsets = zero_points_of(zero_points, bits, scales.shape, default)

    def taken(blockwise: Array) -> Array:
        if gather_axis == quantize_axis:
            return np.take(blockwise, rows // block_size, axis=gather_axis)
        axis = quantize_axis + (rows.ndim - 1 if quantize_axis > gather_axis else 0)
        shared = blockwise.shape[gather_axis] == 1
        per_row = np.take(blockwise, np.zeros_like(rows) if shared else rows, axis=gather_axis)
        return per_element(per_row, block_size, extent, axis)

    values: Any = codes.astype(np.float32)
    if offsets is not None:
        values = values - taken(offsets)
    values = values * taken(scales.astype(np.float32))
    lead = (1,) * gather_axis
    mask = inside.reshape(*lead, *rows.shape, *(1,) * (rank - gather_axis - 1))
    return [np.where(mask, values, np.float32(0)).astype(scales.dtype)]
