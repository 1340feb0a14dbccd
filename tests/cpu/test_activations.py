from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from single_node import falls_back, in_onnxruntime, on_cpu

MICROSOFT = {"domain": "com.microsoft"}

_erf = np.vectorize(math.erf, otypes=[float])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    return x / 2 * (1 + _erf(x / math.sqrt(2)))


def gelu_tanh(x):
    # As a sigmoid: numpy's tanh would lose the small values far below zero.
    return x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


#: Operator, its attributes, where it is, its formula, and its relative error: a few roundings of 6e-8 each, for an
#: exponential or a polynomial, a sum, a quotient, a product.
CASES = [
    ("Relu", {}, {}, lambda x: np.maximum(x, 0), 0),
    ("Exp", {}, {}, np.exp, 1.4e-7),
    ("Sigmoid", {}, {}, sigmoid, 2e-7),
    ("Tanh", {}, {}, np.tanh, 1.3e-7),
    ("Erf", {}, {}, _erf, 1e-7),
    ("Softplus", {}, {}, lambda x: np.logaddexp(0, x), 2.5e-7),
    ("Swish", {}, {}, lambda x: x * sigmoid(x), 2.5e-7),
    ("Swish", {"alpha": -0.5}, {}, lambda x: x * sigmoid(-0.5 * x), 2.5e-7),
    # Of an exponent of 88, a relative error of 1e-7 is one of 9e-6 in the power.
    ("QuickGelu", {}, MICROSOFT, lambda x: x * sigmoid(1.702 * x), 1e-5),
    ("Gelu", {"approximate": "tanh"}, {}, gelu_tanh, 2e-5),
    ("FastGelu", {}, MICROSOFT, gelu_tanh, 2e-5),
]
NAMES = [f"{case[0]}{case[1] or ''}" for case in CASES]

#: Where exp(-x) is beyond float32, x over it is zero: below 178 / 2 ** 128 here.
SMALLEST = 6e-37


def everywhere():
    """Float32 of every magnitude, densely where functions bend."""
    sizes = np.concatenate([np.geomspace(1e-38, 3e38, 20_001), np.linspace(0, 100, 20_001), np.linspace(0, 4, 20_001)])
    return np.concatenate([-sizes[::-1], sizes]).astype(np.float32)


@pytest.mark.parametrize(("operator", "attributes", "where", "formula", "error"), CASES, ids=NAMES)
def test_is_its_formula_everywhere(operator, attributes, where, formula, error):
    x = everywhere()
    (y,) = on_cpu(operator, [x], attributes, **where)
    with np.errstate(all="ignore"):
        expected = formula(x.astype(np.float64))
        near = (np.abs(expected) >= SMALLEST) & np.isfinite(expected.astype(np.float32))
        assert np.abs(y[near] / expected[near] - 1).max() <= error
    small = np.abs(expected) < SMALLEST
    assert np.abs(y[small] - expected[small]).max(initial=0) <= SMALLEST


@pytest.mark.parametrize("where", [{}, MICROSOFT])
def test_gelu_loses_of_the_tail_what_erf_rounds(where):
    x = everywhere()
    (y,) = on_cpu("Gelu", [x], **where)
    expected = gelu(x.astype(np.float64))
    assert (np.abs(y - expected) <= 1.2e-7 * np.abs(x)).all()


@pytest.mark.parametrize("operator", ["BiasGelu", "FastGelu"])
@pytest.mark.parametrize("width", [1, 15, 16, 33])
def test_a_bias_is_added_first(operator, width):
    rng = np.random.default_rng(0)
    x, bias = (rng.standard_normal((2, 3, width)).astype(np.float32) for _ in range(2))
    bias = bias[0, 0]
    (y,) = on_cpu(operator, [x, bias], **MICROSOFT)
    (plain,) = on_cpu("Gelu", [x + bias], {"approximate": "none" if operator == "BiasGelu" else "tanh"})
    np.testing.assert_array_equal(y, plain)


@pytest.mark.parametrize(
    ("operator", "where", "biased"),
    [
        ("Relu", {}, False),
        ("Exp", {}, False),
        ("Sigmoid", {}, False),
        ("Tanh", {}, False),
        ("Erf", {}, False),
        ("Softplus", {}, False),
        ("Gelu", {}, False),
        ("Gelu", MICROSOFT, False),
        ("QuickGelu", MICROSOFT, False),
        ("FastGelu", MICROSOFT, False),
        ("FastGelu", MICROSOFT, True),
        ("BiasGelu", MICROSOFT, True),
    ],
)
def test_agrees_with_onnxruntime(operator, where, biased):
    rng = np.random.default_rng(1)
    inputs = [4 * rng.standard_normal((3, 5, 37)).astype(np.float32), rng.standard_normal(37).astype(np.float32)]
    inputs = inputs[: 1 + biased]
    # onnxruntime clamps some arguments, and evaluates other polynomials in float32.
    expected = in_onnxruntime(operator, inputs, version=21, **where)[0]
    np.testing.assert_allclose(on_cpu(operator, inputs, **where)[0], expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("operator", "attributes", "where"), [case[:3] for case in CASES], ids=NAMES)
def test_bits_depend_on_neither_parts_nor_place(operator, attributes, where):
    x = np.random.default_rng(2).standard_normal(23_003).astype(np.float32)
    (expected,) = on_cpu(operator, [x], attributes, threads=1, **where)
    for threads in (2, 3, 4):
        np.testing.assert_array_equal(on_cpu(operator, [x], attributes, threads=threads, **where)[0], expected)
    for part in (slice(0, 1), slice(5, 22), slice(23_000, 23_003)):
        np.testing.assert_array_equal(on_cpu(operator, [x[part]], attributes, **where)[0], expected[part])


@pytest.mark.parametrize("operator", ["BiasGelu", "FastGelu"])
def test_bits_of_a_row_depend_on_neither_parts_nor_rows(operator):
    rng = np.random.default_rng(2)
    x, bias = rng.standard_normal((33, 701)).astype(np.float32), rng.standard_normal(701).astype(np.float32)
    (expected,) = on_cpu(operator, [x, bias], threads=1, **MICROSOFT)
    for threads in (2, 3, 4):
        np.testing.assert_array_equal(on_cpu(operator, [x, bias], threads=threads, **MICROSOFT)[0], expected)
    np.testing.assert_array_equal(on_cpu(operator, [x[7:8], bias], **MICROSOFT)[0], expected[7:8])


@pytest.mark.parametrize(("operator", "attributes", "where", "formula", "error"), CASES, ids=NAMES)
def test_nan_stays_and_infinity_has_its_limit(operator, attributes, where, formula, error):
    x = np.full(19, np.nan, np.float32)
    x[[1, 17]] = np.inf, -np.inf
    (y,) = on_cpu(operator, [x], attributes, **where)
    assert np.isnan(np.delete(y, [1, 17])).all()
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(y, formula(x.astype(float)).astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("operator", "attributes", "where"), [case[:3] for case in CASES], ids=NAMES)
def test_narrow_floats_are_rounded_once(operator, attributes, where, dtype):
    x = np.random.default_rng(3).standard_normal((3, 21)).astype(dtype)
    (y,) = on_cpu(operator, [x], attributes, **where)
    (wide,) = on_cpu(operator, [x.astype(np.float32)], attributes, **where)
    np.testing.assert_array_equal(y, wide.astype(dtype))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,)])
def test_any_rank(shape):
    x = np.full(shape, 0.5, np.float32)
    (y,) = on_cpu("Sigmoid", [x])
    assert y.shape == shape
    np.testing.assert_allclose(y, sigmoid(x.astype(float)), rtol=3e-7)


def test_views_are_read_as_they_are():
    x = np.random.default_rng(3).standard_normal((7, 20)).astype(np.float32).T[::2]
    np.testing.assert_array_equal(on_cpu("Tanh", [x])[0], on_cpu("Tanh", [x.copy()])[0])


def test_other_types_run_on_the_host():
    assert falls_back("Sigmoid", [np.zeros(3)])
    assert falls_back("Relu", [np.arange(3, dtype=np.int32)])
