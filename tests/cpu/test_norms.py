from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from single_node import falls_back, in_onnxruntime, on_cpu

#: Sums of at most 700 squares in float32, in 64 chains, then a root, a quotient and two products.
TOLERANCE = {"rtol": 4e-6, "atol": 4e-6}
WIDTHS = [1, 15, 16, 17, 48, 63, 64, 65, 700]

MICROSOFT = {"domain": "com.microsoft"}
RMS = [("SimplifiedLayerNormalization", {}), ("SimplifiedLayerNormalization", MICROSOFT), ("RMSNormalization", {})]


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def normal(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def rms(x, epsilon, axis=-1):
    x = x.astype(np.float64)
    return x / np.sqrt(np.mean(x**2, axis=tuple(range(axis, 0)), keepdims=True) + epsilon)


def centered(x, axis=-1):
    x = x.astype(np.float64)
    return x - x.mean(axis=tuple(range(axis, 0)), keepdims=True)


@pytest.mark.parametrize("constants", [(), (1,)])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("operator", "where"), RMS)
def test_rms(rng, operator, where, width, constants):
    x, gamma = normal(rng, 2, 3, width), normal(rng, width)
    (y,) = on_cpu(operator, [x, gamma], {"epsilon": 1e-3}, constants=constants, **where)
    np.testing.assert_allclose(y, rms(x, 1e-3) * gamma, **TOLERANCE)


@pytest.mark.parametrize("constants", [(), (1, 2)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_layer(rng, width, bias, constants):
    x, gamma = 3 + normal(rng, 2, 3, width), normal(rng, width)
    beta = normal(rng, width) if bias else None
    y, mean, factor = on_cpu("LayerNormalization", [x, gamma, beta], {}, (True,) * 3, constants=constants)
    expected = rms(centered(x), 1e-5)
    np.testing.assert_allclose(y, expected * gamma + (beta if bias else 0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(mean, x.astype(float).mean(axis=-1, keepdims=True), rtol=1e-6)
    if width > 1:
        np.testing.assert_allclose(factor, 1 / np.sqrt(x.astype(float).var(axis=-1, keepdims=True) + 1e-5), rtol=1e-5)


@pytest.mark.parametrize("operator", ["RMSNormalization", "LayerNormalization"])
@pytest.mark.parametrize(("shape", "axis"), [((5,), 0), ((5,), -1), ((3, 5), 0), ((2, 3, 5), 1), ((2, 3, 5, 7), -2)])
def test_other_axes(rng, operator, shape, axis):
    x = normal(rng, *shape)
    gamma = normal(rng, *x.shape[axis:])
    (y,) = on_cpu(operator, [x, gamma], {"axis": axis}, constants=(1,))
    last = axis - x.ndim if axis >= 0 else axis
    expected = rms(x if operator == "RMSNormalization" else centered(x, last), 1e-5, last) * gamma
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1,), (5,), (3, 5), (1, 5)])
def test_a_scale_that_broadcasts_to_the_features(rng, shape):
    x, gamma = normal(rng, 2, 3, 5), normal(rng, *shape)
    for constants in [(), (1,)]:
        (y,) = on_cpu("RMSNormalization", [x, gamma], {"axis": 1}, constants=constants)
        np.testing.assert_allclose(y, rms(x, 1e-5, -2) * gamma, **TOLERANCE)


def test_a_scale_of_rows_runs_on_the_host(rng):
    assert falls_back("RMSNormalization", [normal(rng, 5, 5), normal(rng, 5, 1)])


def test_float64_and_other_stashes_run_on_the_host(rng):
    assert falls_back("RMSNormalization", [normal(rng, 2, 5, dtype=np.float64), normal(rng, 5, dtype=np.float64)])
    half = [normal(rng, 2, 5, dtype=np.float16), normal(rng, 5, dtype=np.float16)]
    assert falls_back("LayerNormalization", half, {"stash_type": 10})


def test_the_scale_gives_the_type_of_a_simplified_one(rng):
    x, gamma = normal(rng, 2, 40, dtype=np.float16), normal(rng, 40)
    y, factor = on_cpu("SimplifiedLayerNormalization", [x, gamma], {}, (True, True))
    assert y.dtype == factor.dtype == np.float32
    np.testing.assert_allclose(y, rms(x, 1e-5) * gamma, **TOLERANCE)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("operator", ["RMSNormalization", "LayerNormalization"])
def test_narrow_floats_are_rounded_once(rng, operator, dtype):
    x, gamma = normal(rng, 3, 48, dtype=dtype), normal(rng, 48, dtype=dtype)
    for constants in [(), (1,)]:
        (y,) = on_cpu(operator, [x, gamma], constants=constants)
        (wide,) = on_cpu(operator, [x.astype(np.float32), gamma.astype(np.float32)])
        np.testing.assert_array_equal(y, wide.astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("skip", [(2, 3, 49), (1, 3, 49), (3, 49)])
@pytest.mark.parametrize("simplified", [False, True])
def test_skip(rng, simplified, skip, bias, dtype):
    x, gamma, beta = normal(rng, 2, 3, 49, dtype=dtype), normal(rng, 49, dtype=dtype), normal(rng, 49, dtype=dtype)
    extra = normal(rng, 49, dtype=dtype) if bias else None
    inputs = [x, normal(rng, *skip, dtype=dtype), gamma, *([] if simplified else [beta]), extra]
    operator = f"Skip{'Simplified' if simplified else ''}LayerNormalization"
    y, mean, factor, total = on_cpu(operator, inputs, {"epsilon": 1e-3}, (True,) * 4, constants=(2, 3), **MICROSOFT)
    wide = x.astype(float) + inputs[1] + (extra if bias else 0)
    middle = wide if simplified else centered(wide)
    # One more rounding, of the result, in float16.
    near = TOLERANCE if dtype is np.float32 else {"rtol": 2**-10, "atol": 1e-5}
    np.testing.assert_allclose(total, wide, **near)
    np.testing.assert_allclose(y, rms(middle, 1e-3) * gamma + (0 if simplified else beta), **near)
    np.testing.assert_allclose(mean, 0 * middle[..., :1] + (wide - middle)[..., :1], **TOLERANCE)
    np.testing.assert_allclose(factor, 1 / np.sqrt((middle**2).mean(-1, keepdims=True) + 1e-3), **TOLERANCE)
    assert (y.dtype, total.dtype, mean.dtype) == (dtype, dtype, np.float32)
    options = {"epsilon": 1e-3}
    theirs = in_onnxruntime(operator, inputs, options, (True,) * 4, **MICROSOFT)
    for index, expected in ((0, theirs[0]), (3, theirs[3])):
        np.testing.assert_allclose((y, mean, factor, total)[index], expected, **near)
    # The outputs that are not wanted change nothing of the others.
    (alone,) = on_cpu(operator, inputs, options, **MICROSOFT)
    first, last = on_cpu(operator, inputs, options, (True, False, False, True), **MICROSOFT)
    for given, expected in [(alone, y), (first, y), (last, total)]:
        np.testing.assert_array_equal(given, expected)


@pytest.mark.parametrize(("operator", "where"), RMS[:1])
def test_agrees_with_onnxruntime(rng, operator, where):
    inputs = [normal(rng, 4, 130), normal(rng, 130)]
    np.testing.assert_allclose(on_cpu(operator, inputs)[0], in_onnxruntime(operator, inputs)[0], **TOLERANCE)
    inputs.append(normal(rng, 130))
    (y,) = on_cpu("LayerNormalization", inputs)
    np.testing.assert_allclose(y, in_onnxruntime("LayerNormalization", inputs, version=21)[0], **TOLERANCE)


@pytest.mark.parametrize("operator", ["SkipSimplifiedLayerNormalization", "SkipLayerNormalization"])
def test_bits_depend_on_neither_parts_nor_rows(rng, operator):
    x, skip, gamma = normal(rng, 37, 701), normal(rng, 37, 701), normal(rng, 701)
    outputs = (True, False, False, True)
    expected = on_cpu(operator, [x, skip, gamma], {}, outputs, threads=1, **MICROSOFT)
    for threads in (2, 3, 4):
        for given, wanted in zip(
            on_cpu(operator, [x, skip, gamma], {}, outputs, threads=threads, **MICROSOFT), expected, strict=True
        ):
            np.testing.assert_array_equal(given, wanted)
    for row in (0, 17, 36):
        part = slice(row, row + 1)
        for given, wanted in zip(
            on_cpu(operator, [x[part], skip[part], gamma], {}, outputs, **MICROSOFT), expected, strict=True
        ):
            np.testing.assert_array_equal(given, wanted[part])


@pytest.mark.parametrize("operator", ["RMSNormalization", "LayerNormalization"])
def test_nan_and_infinity_spoil_their_row_alone(rng, operator):
    x, gamma = normal(rng, 3, 33), np.ones(33, np.float32)
    x[1, 32] = np.nan
    (y,) = on_cpu(operator, [x, gamma])
    assert np.isnan(y[1]).all()
    assert np.isfinite(y[[0, 2]]).all()


def test_views_are_read_as_they_are(rng):
    x, gamma = normal(rng, 20, 4).T, normal(rng, 20)
    np.testing.assert_array_equal(
        on_cpu("RMSNormalization", [x, gamma])[0], on_cpu("RMSNormalization", [x.copy(), gamma])[0]
    )
