from __future__ import annotations

import math

import numpy as np
import pytest
from conftest import distance
from tokenmill_reference.contrib import operators


def normal(rng, *shape, dtype=np.float32):
    return (4 * rng.standard_normal(shape)).astype(dtype)


def run(name, inputs, attributes=None):
    return operators()["com.microsoft", name](inputs, attributes or {}, 1)[0]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_gelu(agrees, rng):
    agrees("Gelu", [normal(rng, 3, 40)], terms=4)
    agrees("BiasGelu", [normal(rng, 3, 40), normal(rng, 40)], terms=4)


@pytest.mark.parametrize("bias", [False, True])
def test_fast_gelu(agrees, rng, bias):
    agrees("FastGelu", [normal(rng, 3, 40), normal(rng, 40) if bias else None], terms=4)


@pytest.mark.parametrize("attributes", [{}, {"alpha": 1.0}, {"alpha": -0.5}])
def test_quick_gelu(agrees, rng, attributes):
    agrees("QuickGelu", [normal(rng, 3, 40)], attributes, terms=4)


def test_far_from_zero_nothing_overflows(agrees):
    x = np.array([-1e4, -100, -30, 0, 30, 100, 1e4], np.float32)
    for operator in ("Gelu", "FastGelu", "QuickGelu"):
        agrees(operator, [x])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("scale", [None, np.array(0.3, np.float32)])
def test_scaled_silu(agrees, rng, scale, dtype):
    agrees("ScaledSiLU", [normal(rng, 3, 40, dtype=dtype), scale], {"alpha": 1.5}, terms=4)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gated_add(agrees, rng, dtype):
    agrees(
        "GatedAdd",
        [normal(rng, 2, 3, 8, dtype=dtype), normal(rng, 2, 3, 8, dtype=dtype), normal(rng, 2, 3, 1, dtype=dtype)],
    )


def test_gated_add_with_a_projected_gate(rng):
    """onnxruntime's CPU provider lacks it: the formula of its documentation."""
    x, y, gate, weight = normal(rng, 2, 3, 8), normal(rng, 2, 3, 8), normal(rng, 2, 3, 5), normal(rng, 5, 1)
    expected = x + y.astype(float) * sigmoid(gate.astype(float) @ weight)
    assert distance(run("GatedAdd", [x, y, gate, weight]), expected.astype(np.float32), 5) < 1


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    "attributes", [{}, {"limit": 3.0}, {"activation_alpha": 1.702, "activation_beta": 1.0, "limit": 7.0}], ids=str
)
def test_swiglu_is_its_formula(rng, attributes, dtype, packed):
    """onnxruntime's CPU provider lacks it: the formula of its documentation."""
    gate, up = normal(rng, 2, 3, 8, dtype=dtype), normal(rng, 2, 3, 8, dtype=dtype)
    limit = attributes.get("limit", math.inf)
    g, l = np.minimum(gate.astype(float), limit), np.clip(up.astype(float), -limit, limit)  # noqa: E741
    expected = g * sigmoid(attributes.get("activation_alpha", 1.0) * g) * (l + attributes.get("activation_beta", 0.0))
    inputs = [np.concatenate((gate, up), axis=-1), None] if packed else [gate, up]
    assert distance(run("SwiGLU", inputs, attributes), expected.astype(dtype)) < 1


def test_swiglu_may_round_the_activated_gate_on_the_way(rng):
    gate, up = normal(rng, 2, 40, dtype=np.float16), normal(rng, 2, 40, dtype=np.float16)
    wide = gate.astype(float)
    opened = (wide * sigmoid(wide)).astype(np.float16)
    expected = (opened.astype(float) * up.astype(float)).astype(np.float16)
    np.testing.assert_array_equal(run("SwiGLU", [gate, up], {"round_activation": 1}), expected)


def test_bias_add_is_its_formula(rng):
    """onnxruntime's CPU provider lacks it."""
    x, bias, skip = normal(rng, 2, 3, 8), normal(rng, 8), normal(rng, 2, 3, 8)
    expected = (x.astype(float) + bias + skip).astype(np.float32)
    np.testing.assert_array_equal(run("BiasAdd", [x, bias, skip]), expected)
