from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tokenmill.errors import OperatorError
from tokenmill_reference.contrib.blocks import rounded_to_int8
from tokenmill_reference.contrib.matmul_nbits import dequantized, matmul_nbits

CONSTANTS = (1, 2, 3, 4, 5)


def node(rng, *, rows=3, n=24, k=70, block_size=32, bits=4, zero_points=None, bias=False, dtype=np.float32):
    """Random inputs of a MatMulNBits, and its attributes."""
    blocks = -(-k // block_size)
    zeros = {
        None: None,
        "packed": rng.integers(0, 256, (n, -(-blocks * bits // 8)), dtype=np.uint8),
        "float": rng.uniform(0, 2**bits - 1, (n, blocks)).astype(dtype),
    }[zero_points]
    inputs = [
        rng.standard_normal((2, rows, k)).astype(dtype),
        rng.integers(0, 256, (n, blocks, block_size * bits // 8), dtype=np.uint8),
        rng.uniform(0.01, 0.1, (n, blocks)).astype(dtype),
        zeros,
        None,
        rng.standard_normal(n).astype(dtype) if bias else None,
    ]
    return inputs, {"N": n, "K": k, "bits": bits, "block_size": block_size}


@pytest.mark.parametrize("block_size", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("zero_points", [None, "packed", "float"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_every_width_block_and_zero_point(agrees, rng, bits, zero_points, block_size):
    if bits == 8 and zero_points == "float":
        pytest.skip("onnxruntime refuses float zero points of 8-bit weights; the formula is tested below")
    k = 300 if block_size > 64 else 70  # never a multiple of the block
    inputs, attributes = node(rng, k=k, bits=bits, zero_points=zero_points, block_size=block_size)
    agrees("MatMulNBits", inputs, attributes, terms=k, constants=CONSTANTS)


@pytest.mark.parametrize("zero_points", [None, "packed", "float"])
def test_float16_with_bias(agrees, rng, zero_points):
    inputs, attributes = node(rng, zero_points=zero_points, bias=True, dtype=np.float16)
    agrees("MatMulNBits", inputs, attributes, terms=70, constants=CONSTANTS)


def test_group_index_without_zero_points(agrees, rng):
    inputs, attributes = node(rng)
    inputs[4] = rng.integers(0, 3, 70).astype(np.int32)
    agrees("MatMulNBits", inputs, attributes, terms=70, constants=CONSTANTS)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zero_points", [None, "packed", "float"])
@pytest.mark.parametrize("grouped", [False, True])
def test_weight_is_the_formula_element_by_element(rng, bits, zero_points, grouped):
    n, k, block_size = 3, 40, 16
    inputs, attributes = node(rng, n=n, k=k, block_size=block_size, bits=bits, zero_points=zero_points)
    if grouped:
        inputs[4] = rng.integers(0, 3, k).astype(np.int32)
    weight = dequantized(inputs, attributes)
    _, packed, scales, zeros, group, _ = inputs

    def code(row: np.ndarray, index: int) -> int:
        return int(row[index * bits // 8]) >> (index * bits % 8) & (2**bits - 1)

    for i in range(n):
        for j in range(k):
            block = j // block_size if group is None else int(group[j])
            zero = {
                None: lambda i, b: 2 ** (bits - 1),
                "packed": lambda i, b: code(zeros[i], b),
                "float": lambda i, b: float(zeros[i, b]),
            }[zero_points](i, block)
            expected = (code(packed[i].reshape(-1), j) - zero) * float(scales[i, block])
            assert abs(weight[i, j] - expected) <= 2 * np.finfo(np.float32).eps * 256 * float(scales[i, block])


def test_bfloat16_is_the_float32_product_rounded(rng):
    inputs, attributes = node(rng, zero_points="packed", bias=True, dtype=ml_dtypes.bfloat16)
    (y,) = matmul_nbits(inputs, attributes, 1)
    wide = [x.astype(np.float32) if x is not None and x.dtype == ml_dtypes.bfloat16 else x for x in inputs]
    assert y.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(y, matmul_nbits(wide, attributes, 1)[0].astype(ml_dtypes.bfloat16))


def test_omitted_projection_leaves_the_bias(agrees, rng):
    inputs, attributes = node(rng, bias=True)
    inputs[1] = np.zeros((0, 3, 16), np.uint8)
    agrees("MatMulNBits", inputs, attributes)


def test_flat_scales_and_zero_points_are_the_same_weight(rng):
    inputs, attributes = node(rng, zero_points="packed")
    flat = [x.reshape(-1) if index in (2, 3) else x for index, x in enumerate(inputs)]
    np.testing.assert_array_equal(dequantized(flat, attributes), dequantized(inputs, attributes))


def test_more_features_than_are_dequantized_at_a_time(agrees, rng):
    inputs, attributes = node(rng, rows=1, n=4100, k=32)
    agrees("MatMulNBits", inputs, attributes, terms=32, constants=CONSTANTS)


@pytest.mark.parametrize("block_size", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("zero_points", [None, "packed", "float"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_accuracy_level_4_rounds_activations_where_onnxruntime_does(agrees, rng, bits, zero_points, block_size, dtype):
    if bits == 8 and zero_points == "float":
        pytest.skip("onnxruntime refuses float zero points of 8-bit weights")
    k = 300 if block_size > 64 else 70
    inputs, attributes = node(rng, k=k, bits=bits, zero_points=zero_points, block_size=block_size, dtype=dtype)
    inputs[0][0, 0, :block_size] = 0  # a block without a largest magnitude
    agrees("MatMulNBits", inputs, {**attributes, "accuracy_level": 4}, terms=k, constants=CONSTANTS)


def test_accuracy_level_4_with_a_group_index_rounds_nothing(agrees, rng):
    inputs, attributes = node(rng)
    inputs[4] = rng.integers(0, 3, 70).astype(np.int32)
    agrees("MatMulNBits", inputs, {**attributes, "accuracy_level": 4}, terms=70, constants=CONSTANTS)


def test_rounded_activations_are_within_half_a_step(rng):
    rows = rng.standard_normal((2, 3, 70)).astype(np.float32)
    rounded = rounded_to_int8(rows, 32)
    assert rounded.shape == rows.shape
    for start in range(0, 70, 32):
        block, moved = rows[..., start : start + 32], rounded[..., start : start + 32]
        step = np.abs(block).max(axis=-1, keepdims=True) / 127
        # Half a step, and a few roundings of float32 on 127 steps.
        assert (np.abs(moved - block) <= step * (0.5 + 127 * 4 * np.finfo(np.float32).eps)).all()
        assert len(np.unique(np.rint(moved / step))) > 1


@pytest.mark.parametrize("change", [{"bits": 3}, {"weight_prepacked": 1}])
def test_refuses_what_is_not_defined(rng, change):
    inputs, attributes = node(rng)
    with pytest.raises(OperatorError, match=str(next(iter(change)))):
        matmul_nbits(inputs, {**attributes, **change}, 1)
