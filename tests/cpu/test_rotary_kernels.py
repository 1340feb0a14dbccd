from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from single_node import falls_back, in_onnxruntime, model_of, on_cpu
from tokenmill.compile import compile
from tokenmill.errors import KernelError, OperatorError

POSITIONS = 24
MICROSOFT = {"domain": "com.microsoft"}

#: Two products and a sum of values of up to 5.
TOLERANCE = {"rtol": 3e-7, "atol": 1e-6}


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def caches(rng, half, dtype=np.float32):
    angles = rng.uniform(0, 2 * math.pi, (POSITIONS, half))
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def expected_of(x, ids, cosine, sine, heads, *, interleaved):
    """By the definition, in float64."""
    wide = x.astype(np.float64)
    split = wide.transpose(0, 2, 1, 3) if x.ndim == 4 else wide.reshape(*x.shape[:2], heads, -1)
    c, s = (np.asarray(table, np.float64)[ids][:, :, np.newaxis] for table in (cosine, sine))
    half, y = c.shape[-1], split.copy()
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    )
    y[..., first] = split[..., first] * c - split[..., second] * s
    y[..., second] = split[..., first] * s + split[..., second] * c
    return y.transpose(0, 2, 1, 3) if x.ndim == 4 else y.reshape(x.shape)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("four", [False, True])
@pytest.mark.parametrize(("half", "size"), [(1, 2), (8, 16), (15, 30), (16, 32), (17, 34), (32, 64), (8, 24), (17, 37)])
@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_is_its_definition(rng, domain, half, size, four, interleaved):
    heads = 3
    x = rng.standard_normal((2, heads, 5, size) if four else (2, 5, heads * size)).astype(np.float32)
    ids, (cosine, sine) = rng.integers(0, POSITIONS, (2, 5)), caches(rng, half)
    attributes = {"interleaved": interleaved, "num_heads": heads}
    if 2 * half != size:
        attributes["rotary_embedding_dim"] = 2 * half
    expected = expected_of(x, ids, cosine, sine, heads, interleaved=interleaved)
    inputs = [x, cosine, sine, ids] if domain == "" else [x, ids, cosine, sine]
    (y,) = on_cpu("RotaryEmbedding", inputs, attributes, domain=domain)
    np.testing.assert_allclose(y, expected, **TOLERANCE)
    if domain and size % 8 == 0:
        theirs = in_onnxruntime("RotaryEmbedding", inputs, attributes, domain=domain)[0]
        np.testing.assert_allclose(y, theirs, **TOLERANCE)


@pytest.mark.parametrize("four", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_one_position_is_that_of_the_first_token(rng, four, scale):
    x = rng.standard_normal((2, 3, 5, 16) if four else (2, 5, 48)).astype(np.float32)
    cosine, sine = caches(rng, 8)
    inputs = [x, np.array([7]), cosine, sine]
    (y,) = on_cpu("RotaryEmbedding", inputs, {"scale": scale}, **MICROSOFT)
    ids = np.broadcast_to(np.arange(7, 12), (2, 5))
    np.testing.assert_allclose(y, expected_of(x, ids, cosine, sine, 3, interleaved=False), **TOLERANCE)
    # onnxruntime takes the scale, too, and does not use it.
    theirs = in_onnxruntime("RotaryEmbedding", inputs, {"scale": scale}, **MICROSOFT)[0]
    np.testing.assert_allclose(y, theirs, **TOLERANCE)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_angles_may_come_for_each_token(rng, interleaved):
    x, ids, (cosine, sine) = (
        rng.standard_normal((2, 5, 48)).astype(np.float32),
        rng.integers(0, 9, (2, 5)),
        caches(rng, 8),
    )
    attributes = {"num_heads": 3, "interleaved": interleaved}
    (y,) = on_cpu("RotaryEmbedding", [x, cosine[ids], sine[ids]], attributes)
    np.testing.assert_array_equal(y, on_cpu("RotaryEmbedding", [x, cosine, sine, ids], attributes)[0])


@pytest.mark.parametrize("constants", [(), (2, 3)])
@pytest.mark.parametrize("positions", [[[3, 4, 5, 6, 7], [0, 9, 2, 23, 1]], [4]])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_are_rounded_once(rng, dtype, positions, constants):
    x, ids = rng.standard_normal((2, 5, 48)).astype(dtype), np.array(positions)
    cosine, sine = caches(rng, 8, dtype)
    (y,) = on_cpu("RotaryEmbedding", [x, ids, cosine, sine], constants=constants, **MICROSOFT)
    wide = [x.astype(np.float32), ids, cosine.astype(np.float32), sine.astype(np.float32)]
    np.testing.assert_array_equal(y, on_cpu("RotaryEmbedding", wide, **MICROSOFT)[0].astype(dtype))


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("four", [False, True])
def test_bits_depend_on_neither_parts_nor_tokens(rng, four, interleaved):
    x = rng.standard_normal((1, 7, 61, 62) if four else (1, 61, 7 * 62)).astype(np.float32)
    ids, (cosine, sine) = rng.integers(0, POSITIONS, (1, 61)), caches(rng, 31)
    attributes = {"interleaved": interleaved}
    (expected,) = on_cpu("RotaryEmbedding", [x, ids, cosine, sine], attributes, threads=1, **MICROSOFT)
    for threads in (2, 3, 4):
        (y,) = on_cpu("RotaryEmbedding", [x, ids, cosine, sine], attributes, threads=threads, **MICROSOFT)
        np.testing.assert_array_equal(y, expected)
    for token in (slice(0, 1), slice(30, 33), slice(60, 61)):
        part = x[:, :, token] if four else x[:, token]
        (y,) = on_cpu("RotaryEmbedding", [part, ids[:, token], cosine, sine], attributes, **MICROSOFT)
        np.testing.assert_array_equal(y, expected[:, :, token] if four else expected[:, token])


@pytest.mark.parametrize("position", [-1, POSITIONS])
def test_positions_without_angles_are_refused(rng, position):
    x = rng.standard_normal((2, 5, 48)).astype(np.float32)
    for dtype, error in [(np.float32, KernelError), (np.float16, OperatorError)]:
        for ids in (np.full((2, 5), position), np.array([position])):
            model, feeds = model_of("RotaryEmbedding", [x.astype(dtype), ids, *caches(rng, 8, dtype)], **MICROSOFT)
            with compile(model, "cpu") as graph, pytest.raises(error):
                graph.run(feeds)


def test_nan_spoils_its_pair_alone(rng):
    x = rng.standard_normal((1, 1, 40)).astype(np.float32)
    x[0, 0, 3] = np.nan
    (y,) = on_cpu("RotaryEmbedding", [x, np.array([5]), *caches(rng, 20)], **MICROSOFT)
    assert np.flatnonzero(np.isnan(y)).tolist() == [3, 23]


def test_what_it_does_not_take_runs_on_the_host(rng):
    x = rng.standard_normal((2, 5, 48))
    assert falls_back("RotaryEmbedding", [x, np.array([0]), *caches(rng, 8, np.float64)], **MICROSOFT)
