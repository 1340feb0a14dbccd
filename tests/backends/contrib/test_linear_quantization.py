from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tokenmill_reference.contrib import operators

CODES = [np.uint8, np.int8, np.uint16, np.int16, ml_dtypes.uint4, ml_dtypes.int4]


def codes(rng, dtype, *shape):
    info = ml_dtypes.iinfo(dtype)
    return rng.integers(int(info.min), int(info.max) + 1, shape).astype(dtype)


def parameters(rng, dtype, axis, extent):
    """Scale and zero point, one or one for each index of an axis."""
    shape = () if axis is None else (extent,)
    return rng.uniform(0.01, 0.1, shape).astype(np.float32), codes(rng, dtype, *shape)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_quantize(agrees, rng, dtype, axis):
    x = (3 * rng.standard_normal((4, 5, 6))).astype(np.float32)
    attributes = {} if axis is None else {"axis": axis}
    scale, zero = parameters(rng, dtype, axis, 0 if axis is None else x.shape[axis])
    agrees("QuantizeLinear", [x, scale, zero], attributes)


@pytest.mark.parametrize("dtype", [ml_dtypes.uint4, ml_dtypes.int4])
def test_quantize_to_four_bits_is_its_formula(rng, dtype):
    """Saturated in the integers; numpy cannot be handed onnxruntime's packed values."""
    x = (3 * rng.standard_normal((4, 5))).astype(np.float32)
    scale, zero = np.array(0.25, np.float32), codes(rng, dtype)
    (y,) = operators()["com.microsoft", "QuantizeLinear"]([x, scale, zero], {}, 1)
    info = ml_dtypes.iinfo(dtype)
    expected = np.clip(np.round(x * 4) + int(zero), int(info.min), int(info.max))
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.astype(np.float32), expected)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("dtype", CODES)
def test_dequantize(agrees, rng, dtype, axis):
    x = codes(rng, dtype, 4, 5, 6)
    attributes = {} if axis is None else {"axis": axis}
    scale, zero = parameters(rng, dtype, axis, 0 if axis is None else x.shape[axis])
    agrees("DequantizeLinear", [x, scale, zero], attributes)


def test_omitted_zero_point_is_zero(agrees, rng):
    scale = np.array(0.1, np.float32)
    agrees("DequantizeLinear", [codes(rng, np.int8, 4, 5), scale])
    agrees("QuantizeLinear", [rng.uniform(0, 9, (4, 5)).astype(np.float32), scale])
