"""Products with weights in blocks, against a float64 formula."""

from __future__ import annotations

import numpy as np
import pytest
import tokenmill
from single_node import model_of

ROWS = (1, 2, 3, 8, 21)


def model(weights, case, accuracy):
    attributes = {"K": case["width"], "N": case["columns"], "accuracy_level": accuracy}
    attributes |= {name: case[name] for name in ("bits", "block_size")}
    x = np.zeros((1, case["width"]), np.float32)
    inputs = [x, weights["packed"], weights["scales"], weights["points"], None, weights["bias"]]
    return model_of("MatMulNBits", inputs, attributes, domain="com.microsoft", constants=(1, 2, 3, 5))[0]


def random_weights(rng, *, bits, block_size, width, columns, zero_points, bias):
    """Inputs of the node, and the matrix they stand for in float64."""
    blocks = -(-width // block_size)
    values = rng.integers(0, 1 << bits, (columns, blocks, block_size), np.uint8)
    scales = (rng.random((columns, blocks)) * 0.02 + 0.001).astype(np.float32)
    zeros, points = np.full((columns, blocks), 1 << (bits - 1), np.float64), None
    if zero_points == "packed":
        whole = rng.integers(0, 1 << bits, (columns, blocks), np.uint8)
        zeros, points = whole.astype(np.float64), packed(whole, bits)
    elif zero_points == "float":
        points = (rng.random((columns, blocks)) * ((1 << bits) - 1)).astype(np.float32)
        zeros = points.astype(np.float64)
    matrix = ((values - zeros[..., None]) * scales[..., None]).reshape(columns, -1)[:, :width]
    weights = {
        "packed": packed(values, bits),
        "scales": scales,
        "points": points,
        "bias": rng.standard_normal(columns).astype(np.float32) if bias else None,
    }
    return weights, matrix


def packed(values, bits):
    per_byte = 8 // bits
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % per_byte)])
    parts = padded.reshape(*padded.shape[:-1], -1, per_byte).astype(np.uint16)
    return (parts << (np.arange(per_byte) * bits)).sum(-1).astype(np.uint8)


def compiled(graph, level="auto", threads=2):
    return tokenmill.compile(graph, "cpu", instructions=level, threads=threads)


CASES = [
    {"bits": 4, "block_size": 32, "width": 64, "columns": 48, "zero_points": None, "bias": False},
    {"bits": 4, "block_size": 32, "width": 80, "columns": 37, "zero_points": None, "bias": True},
    {"bits": 4, "block_size": 128, "width": 320, "columns": 33, "zero_points": "packed", "bias": False},
    {"bits": 4, "block_size": 32, "width": 96, "columns": 16, "zero_points": "float", "bias": True},
    {"bits": 4, "block_size": 16, "width": 96, "columns": 20, "zero_points": "packed", "bias": False},
    {"bits": 8, "block_size": 32, "width": 96, "columns": 50, "zero_points": None, "bias": True},
    {"bits": 8, "block_size": 64, "width": 192, "columns": 40, "zero_points": "packed", "bias": False},
    {"bits": 2, "block_size": 32, "width": 64, "columns": 24, "zero_points": None, "bias": False},
]


@pytest.mark.parametrize("level", ["auto", "portable"])
@pytest.mark.parametrize("accuracy", [0, 4])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_a_product_is_the_formulas(case, accuracy, level):
    rng = np.random.default_rng(5)
    weights, matrix = random_weights(rng, **case)
    bias = 0 if weights["bias"] is None else weights["bias"].astype(np.float64)
    with compiled(model(weights, case, accuracy), level) as product:
        for rows in ROWS:
            x = rng.standard_normal((rows, case["width"])).astype(np.float32)
            exact = x.astype(np.float64) @ matrix.T + bias
            error = np.abs(product.run({"i0": x})["o0"] - exact)
            mass = np.abs(x).astype(np.float64) @ np.abs(matrix).T + np.abs(bias)
            if accuracy == 4:
                # Half a step of each block of activations, and float32 sums.
                blocks = np.pad(np.abs(x), [(0, 0), (0, -x.shape[1] % 32)]).reshape(rows, -1, 32)
                steps = np.repeat(blocks.max(-1) / 254, 32, axis=1)[:, : x.shape[1]]
                bound = steps @ np.abs(matrix).T + mass * 2.0**-19 + 1e-5
            else:
                bound = mass * case["width"] * 2.0**-23 + 1e-6
            assert np.all(error <= bound)


@pytest.mark.parametrize("accuracy", [0, 4])
def test_a_row_has_the_same_bits_alone_and_among_others_on_any_number_of_threads(accuracy):
    case = CASES[1]
    rng = np.random.default_rng(6)
    weights, _ = random_weights(rng, **case)
    graph = model(weights, case, accuracy)
    x = rng.standard_normal((8, case["width"])).astype(np.float32)
    with compiled(graph, threads=1) as alone:
        expected = np.concatenate([alone.run({"i0": x[i : i + 1]})["o0"] for i in range(8)])
    for threads in (1, 2, 3, 4):
        with compiled(graph, threads=threads) as product:
            for rows in range(1, 9):
                assert product.run({"i0": x[:rows]})["o0"].tobytes() == expected[:rows].tobytes()


@pytest.mark.parametrize("accuracy", [0, 4])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_spoils_its_row_and_no_other(accuracy, value):
    case = CASES[0]
    rng = np.random.default_rng(7)
    weights, _ = random_weights(rng, **case)
    x = rng.standard_normal((3, case["width"])).astype(np.float32)
    x[1, 40] = value
    with compiled(model(weights, case, accuracy)) as product:
        y = product.run({"i0": x})["o0"]
    assert not np.isfinite(y[1]).any()
    assert np.isfinite(y[[0, 2]]).all()


def test_a_shape_that_does_not_fit_is_refused_and_the_next_run_works():
    case = CASES[0]
    weights, _ = random_weights(np.random.default_rng(8), **case)
    weights["scales"] = weights["scales"][:, :1]
    with pytest.raises(tokenmill.errors.TokenmillError, match="MatMulNBits"):
        compiled(model(weights, case, 4))
