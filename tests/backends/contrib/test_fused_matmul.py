from __future__ import annotations

import numpy as np
import pytest
from tokenmill.errors import OperatorError
from tokenmill_reference.contrib import operators


def normal(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("a", "b", "attributes"),
    [
        ((3, 5), (5, 4), {"alpha": 0.3}),
        ((5, 3), (5, 4), {"transA": 1}),
        ((3, 5), (4, 5), {"transB": 1, "alpha": -2.0}),
        ((2, 5, 3), (2, 4, 5), {"transA": 1, "transB": 1}),
        ((6, 2, 3, 5), (1, 2, 5, 4), {}),
        ((2, 3, 5), (5, 4), {}),
        ((3, 2, 5), (2, 5, 4), {"transBatchA": 1}),
        ((2, 3, 5), (5, 2, 4), {"transBatchB": 1}),
        ((5, 2, 3), (4, 2, 5), {"transBatchA": 1, "transA": 1, "transBatchB": 1, "transB": 1}),
        ((5,), (5, 4), {}),
        ((3, 5), (5,), {}),
    ],
    ids=str,
)
def test_fused_matmul(agrees, rng, a, b, attributes, dtype):
    agrees("FusedMatMul", [normal(rng, *a, dtype=dtype), normal(rng, *b, dtype=dtype)], attributes, terms=5)


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "Sigmoid", "Tanh"])
@pytest.mark.parametrize("c", [None, (3, 4), (4,), (3, 1), (1,)])
def test_fused_gemm(agrees, rng, activation, c):
    attributes = {"transA": 1, "alpha": 0.7, "beta": 0.3, "activation": activation, "activation_alpha": 0.2}
    inputs = [normal(rng, 5, 3), normal(rng, 5, 4), None if c is None else normal(rng, *c)]
    agrees("FusedGemm", inputs, attributes, terms=5)


def codes(rng, dtype, *shape):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("columns", [1, 4])
@pytest.mark.parametrize(("a", "b"), [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
def test_matmul_integer_to_float(agrees, rng, a, b, columns, bias):
    scales = [np.array([0.02], np.float32), rng.uniform(0.01, 0.1, columns).astype(np.float32)]
    zeros = [codes(rng, a, 1), codes(rng, b, columns)]
    inputs = [codes(rng, a, 2, 3, 40), codes(rng, b, 40, 4), *scales, *zeros, normal(rng, 4) if bias else None]
    agrees("MatMulIntegerToFloat", inputs, terms=40)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("columns", [1, 4])
def test_dynamic_quantize_matmul(agrees, rng, columns, dtype, bias):
    scale, zero = rng.uniform(0.01, 0.1, columns).astype(np.float32), codes(rng, dtype, columns)
    inputs = [normal(rng, 2, 3, 40), codes(rng, dtype, 40, 4), scale, zero, normal(rng, 4) if bias else None]
    agrees("DynamicQuantizeMatMul", inputs, terms=40)


def test_refuses_an_unknown_activation(rng):
    with pytest.raises(OperatorError, match=r"'Softsign' of FusedGemm.*known are Relu"):
        inputs = [normal(rng, 2, 2), normal(rng, 2, 2)]
        operators()["com.microsoft", "FusedGemm"](inputs, {"activation": "Softsign"}, 1)
