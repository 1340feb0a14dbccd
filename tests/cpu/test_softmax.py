from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from single_node import falls_back, in_onnxruntime, on_cpu

OPERATORS = ["Softmax", "LogSoftmax"]

#: An exponential, a sum of at most 700 of them in 32 chains, and a quotient. The largest magnitude of a logarithm here,
#: about 30, is rounded twice.
TOLERANCE = {"rtol": 2e-6, "atol": 4e-6}


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def expected_of(operator, x, axis=-1):
    x = x.astype(np.float64)
    shifted = x - x.max(axis=axis, keepdims=True)
    logarithm = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    return np.exp(logarithm) if operator == "Softmax" else logarithm


def assert_near(actual, expected, operator):
    if operator == "Softmax":
        np.testing.assert_allclose(actual, expected, rtol=TOLERANCE["rtol"], atol=1e-37)
    else:
        np.testing.assert_allclose(actual, expected, **TOLERANCE)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("width", [1, 15, 16, 17, 31, 32, 33, 48, 49, 64, 700])
def test_along_the_last_axis(rng, operator, width):
    x = (5 * rng.standard_normal((2, 3, width))).astype(np.float32)
    (y,) = on_cpu(operator, [x])
    assert_near(y, expected_of(operator, x), operator)
    np.testing.assert_allclose(y, in_onnxruntime(operator, [x], version=21)[0], **TOLERANCE)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("shape", "axis"), [((5,), 0), ((3, 5), 0), ((2, 3, 5), 1), ((2, 3, 5), 2), ((2, 3, 5), -3)])
def test_along_other_axes(rng, operator, shape, axis):
    x = rng.standard_normal(shape).astype(np.float32)
    assert_near(on_cpu(operator, [x], {"axis": axis})[0], expected_of(operator, x, axis), operator)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
def test_before_opset_13_a_row_is_everything_from_the_axis_on(rng, operator, axis):
    x = rng.standard_normal((2, 3, 5)).astype(np.float32)
    attributes = {} if axis is None else {"axis": axis}
    (y,) = on_cpu(operator, [x], attributes, version=11)
    np.testing.assert_allclose(y, in_onnxruntime(operator, [x], attributes, version=11)[0], **TOLERANCE)


@pytest.mark.parametrize("operator", OPERATORS)
def test_large_values_do_not_overflow(operator):
    x = np.array([[-3e38, 0, 3e38], [1000, 1000, -1000], [-1000, -1001, -1002]], np.float32)
    x[0] /= 2
    assert_near(on_cpu(operator, [x])[0], expected_of(operator, x), operator)


@pytest.mark.parametrize("operator", OPERATORS)
def test_masked_items_and_nan(operator):
    x = np.zeros((4, 35), np.float32)
    x[0, 3:] = -np.inf
    x[1] = -np.inf
    x[2, 34] = np.nan
    (y,) = on_cpu(operator, [x])
    with np.errstate(invalid="ignore", divide="ignore"):
        assert_near(y, expected_of(operator, x), operator)
    assert np.isnan(y[1:3]).all()


@pytest.mark.parametrize("operator", OPERATORS)
def test_bits_depend_on_neither_parts_nor_rows(rng, operator):
    x = rng.standard_normal((33, 701)).astype(np.float32)
    (expected,) = on_cpu(operator, [x], threads=1)
    for threads in (2, 3, 4):
        np.testing.assert_array_equal(on_cpu(operator, [x], threads=threads)[0], expected)
    for row in (0, 20, 32):
        np.testing.assert_array_equal(on_cpu(operator, [x[row : row + 1]])[0], expected[row : row + 1])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("operator", OPERATORS)
def test_narrow_floats_are_rounded_once(rng, operator, axis, dtype):
    x = rng.standard_normal((3, 21)).astype(dtype)
    (wide,) = on_cpu(operator, [x.astype(np.float32)], {"axis": axis})
    np.testing.assert_array_equal(on_cpu(operator, [x], {"axis": axis})[0], wide.astype(dtype))


def test_float64_and_empty_arrays_run_on_the_host():
    assert falls_back("Softmax", [np.zeros((2, 3))])
    assert falls_back("Softmax", [np.zeros((0, 3), np.float32)])
