from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from conftest import run_in_onnxruntime
from tokenmill.errors import OperatorError
from tokenmill_reference.contrib import operators

WIDTH = 48


def normal(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("epsilon", [1e-6, 0.1])
@pytest.mark.parametrize("axis", [-1, 1, 2])
def test_simplified(agrees, rng, axis, epsilon):
    x = normal(rng, 2, 5, WIDTH)
    scale = normal(rng, *x.shape[axis:])
    attributes = {"axis": axis, "epsilon": epsilon}
    agrees("SimplifiedLayerNormalization", [x, scale], attributes, domain="", terms=5 * WIDTH)


def test_simplified_in_float16(agrees, rng):
    inputs = [normal(rng, 2, 5, WIDTH, dtype=np.float16), normal(rng, WIDTH, dtype=np.float16)]
    agrees("SimplifiedLayerNormalization", inputs, {"axis": -1}, domain="", terms=WIDTH)


def test_simplified_gives_its_factor(rng):
    x, scale = normal(rng, 2, 5, WIDTH), normal(rng, WIDTH)
    _, factor = operators()["", "SimplifiedLayerNormalization"]([x, scale], {"epsilon": 0.1}, 2)
    expected = 1 / np.sqrt((x.astype(np.float64) ** 2).mean(axis=-1, keepdims=True) + 0.1)
    np.testing.assert_allclose(factor, expected, rtol=1e-7)  # rounded once
    assert factor.dtype == np.float32


def test_squares_of_large_float16_values_do_not_overflow():
    x = np.full((1, 8), 1000, np.float16)
    for name in ("RMSNormalization", "LayerNormalization", "SimplifiedLayerNormalization"):
        (y,) = operators()["", name]([x, np.ones(8, np.float16)], {}, 1)
        np.testing.assert_array_equal(y, np.full((1, 8), 0 if name == "LayerNormalization" else 1, np.float16))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("skip", [(2, 5, WIDTH), (1, 5, WIDTH), (5, WIDTH)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("simplified", [False, True])
def test_skip(agrees, rng, simplified, dtype, skip, bias):
    x, gamma = normal(rng, 2, 5, WIDTH, dtype=dtype), normal(rng, WIDTH, dtype=dtype)
    beta, extra = normal(rng, WIDTH, dtype=dtype), normal(rng, WIDTH, dtype=dtype) if bias else None
    inputs = [x, normal(rng, *skip, dtype=dtype), gamma, *([] if simplified else [beta]), extra]
    operator = f"Skip{'Simplified' if simplified else ''}LayerNormalization"
    # onnxruntime's CPU provider leaves the second and third output unwritten.
    agrees(operator, inputs, {"epsilon": 1e-5}, 4, terms=WIDTH, compared=(0, 3))


@pytest.mark.parametrize("simplified", [False, True])
def test_skip_without_the_options(agrees, rng, simplified):
    operator = f"Skip{'Simplified' if simplified else ''}LayerNormalization"
    agrees(operator, [normal(rng, 5, WIDTH), normal(rng, 5, WIDTH), normal(rng, WIDTH)], {}, 1, terms=WIDTH)


@pytest.mark.parametrize("simplified", [False, True])
def test_skip_gives_mean_and_factor(rng, simplified):
    x, skip, gamma = normal(rng, 2, 5, WIDTH), normal(rng, 2, 5, WIDTH), normal(rng, WIDTH)
    operator = operators()["com.microsoft", f"Skip{'Simplified' if simplified else ''}LayerNormalization"]
    _, mean, factor, total = operator([x, skip, gamma], {"epsilon": 0.1}, 4)
    wide = x.astype(np.float64) + skip
    center = 0 * wide.mean(axis=-1, keepdims=True) if simplified else wide.mean(axis=-1, keepdims=True)
    expected = 1 / np.sqrt(((wide - center) ** 2).mean(axis=-1, keepdims=True) + 0.1)
    # Each is rounded once.
    np.testing.assert_allclose(mean, center, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(factor, expected, rtol=1e-7)
    np.testing.assert_allclose(total, wide, rtol=1e-7, atol=1e-9)


def test_skip_in_bfloat16_is_the_float32_one_rounded(rng):
    inputs = [normal(rng, *shape, dtype=ml_dtypes.bfloat16) for shape in ((2, 5, WIDTH), (2, 5, WIDTH), (WIDTH,))]
    operator = operators()["com.microsoft", "SkipSimplifiedLayerNormalization"]
    wide = run_in_onnxruntime("SkipSimplifiedLayerNormalization", [x.astype(np.float32) for x in inputs], outputs=4)
    for index in (0, 3):
        actual = operator(inputs, {}, 4)[index]
        assert actual.dtype == ml_dtypes.bfloat16
        # One unit in the last place, where the float32 value is at the border of two.
        np.testing.assert_allclose(actual.astype(np.float32), wide[index], rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gated(agrees, rng, activation, groups, dtype):
    x, gate = normal(rng, 2, 5, WIDTH, dtype=dtype), normal(rng, 2, 5, WIDTH, dtype=dtype)
    attributes = {"activation": activation, "epsilon": 1e-3}
    agrees("GatedRMSNorm", [x, normal(rng, WIDTH // groups, dtype=dtype), gate], attributes, terms=WIDTH)


@pytest.mark.parametrize(
    ("operator", "shapes", "message"),
    [
        ("SkipLayerNormalization", [(2, 5, 8), (2, 5, 7), (8,)], r"skip of shape \[2, 5, 7\].*\[2, 5, 8\]"),
        ("SkipLayerNormalization", [(2, 5, 8), (2, 5, 8), (7,)], r"gamma of shape \[7\].*8"),
        ("SkipLayerNormalization", [(2, 5, 8), (2, 5, 8), (8,), (1, 8)], r"beta of shape \[1, 8\].*8"),
        ("SkipSimplifiedLayerNormalization", [(2, 5, 8), (2, 5, 8), (8,), (4,)], r"bias of shape \[4\].*8"),
        ("GatedRMSNorm", [(2, 8), (3,), (2, 8)], r"scale of shape \[3\].*8"),
        ("GatedRMSNorm", [(2, 8), (4,), (2, 4)], r"gate of shape \[2, 4\].*\[2, 8\]"),
    ],
)
def test_refuses_what_does_not_fit(operator, shapes, message):
    with pytest.raises(OperatorError, match=message):
        operators()["com.microsoft", operator]([np.zeros(shape, np.float32) for shape in shapes], {}, 1)


def test_refuses_an_unknown_activation():
    with pytest.raises(OperatorError, match=r"'tanh'.*silu, swish and sigmoid"):
        x = np.zeros((2, 8), np.float32)
        operators()["com.microsoft", "GatedRMSNorm"]([x, x[0], x], {"activation": "tanh"}, 1)
