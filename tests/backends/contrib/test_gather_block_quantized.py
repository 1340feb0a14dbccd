from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

CONSTANTS = (0, 2, 3)


def node(
    rng, dtype, shape=(20, 64), *, bits=4, block_size=16, gather=0, quantize=1, zeros=False, scale_type=np.float32
):
    """Random inputs of a GatherBlockQuantized, and its attributes. Indices count from both ends."""
    blocks = list(shape)
    blocks[quantize] = -(-shape[quantize] // block_size)
    zero_points = None
    if dtype == "uint8":
        per_byte = 8 // bits
        data = rng.integers(0, 256, (*shape[:-1], shape[-1] // per_byte), dtype=np.uint8)
        zero_points = rng.integers(0, 256, (*blocks[:-1], -(-blocks[-1] // per_byte)), dtype=np.uint8)
    elif dtype in ("int4", "uint4"):
        low = -8 if dtype == "int4" else 0
        data, zero_points = (
            rng.integers(low, low + 16, s).astype(getattr(ml_dtypes, dtype)) for s in (shape, tuple(blocks))
        )
    else:
        data = rng.standard_normal(shape).astype(getattr(ml_dtypes, dtype))
    indices = rng.integers(-shape[gather], shape[gather], (3, 2))
    inputs = [data, indices, rng.uniform(0.01, 0.1, blocks).astype(scale_type), zero_points if zeros else None]
    attributes = {"bits": bits, "block_size": block_size, "gather_axis": gather, "quantize_axis": quantize}
    return inputs[: 4 if zeros else 3], attributes


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("columns", [64, 72])  # 72 ends in the middle of a block
def test_packed_bytes(agrees, rng, bits, zeros, columns):
    inputs, attributes = node(rng, "uint8", (20, columns), bits=bits, zeros=zeros)
    agrees("GatherBlockQuantized", inputs, attributes, constants=CONSTANTS)


@pytest.mark.parametrize("block_size", [16, 32, 64, 128, 256])
def test_block_sizes(agrees, rng, block_size):
    inputs, attributes = node(rng, "uint8", (5, 320), block_size=block_size, zeros=True)
    agrees("GatherBlockQuantized", inputs, attributes, constants=CONSTANTS)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize(
    ("shape", "gather", "quantize"), [((20, 64), 0, 1), ((40, 12), 1, 0), ((40, 12), 0, 0), ((3, 5, 40), 1, 2)]
)
def test_four_bit_types_on_every_axis(agrees, rng, dtype, zeros, shape, gather, quantize):
    inputs, attributes = node(rng, dtype, shape, gather=gather, quantize=quantize, zeros=zeros)
    agrees("GatherBlockQuantized", inputs, attributes, constants=CONSTANTS)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_eight_bit_floats(agrees, rng, dtype):
    inputs, attributes = node(rng, dtype)
    agrees("GatherBlockQuantized", inputs, attributes, constants=CONSTANTS)


def test_float16_scales_and_three_axes(agrees, rng):
    inputs, attributes = node(rng, "uint8", (5, 6, 32), quantize=2, zeros=True, scale_type=np.float16)
    agrees("GatherBlockQuantized", inputs, attributes, constants=CONSTANTS)


def test_index_out_of_range_gives_zeros(agrees, rng):
    inputs, attributes = node(rng, "uint8")
    inputs[1][0] = 20, -21
    agrees("GatherBlockQuantized", inputs, attributes, constants=CONSTANTS)
