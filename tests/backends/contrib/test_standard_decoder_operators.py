"""Standard operators of opsets 23 on that decoders are written with, through the host operators, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import distance, run_in_fallback, run_in_onnxruntime
from tokenmill.errors import OperatorError

TYPES = pytest.mark.parametrize("dtype", [np.float32, np.float16])


def normal(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def compare(operator, version, inputs, attributes, outputs=1, tolerance=1.0):
    expected = run_in_onnxruntime(operator, inputs, attributes, outputs, domain="", version=version)
    actual = run_in_fallback(operator, inputs, attributes, outputs, domain="", version=version)
    for index, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        assert distance(ours, theirs, 64) < tolerance, f"output {index}"


def attention(rng, dtype, *, rows=3, keys=5, past=0, mask=None, flat=False, lengths=None, **attributes):
    """Random inputs of 2 sequences, 4 query heads of size 8 and 2 value heads of size 6."""
    inputs = [
        normal(rng, 2, 4, rows, 8, dtype=dtype),
        normal(rng, 2, 2, keys, 8, dtype=dtype),
        normal(rng, 2, 2, keys, 6, dtype=dtype),
        None,
        *((normal(rng, 2, 2, past, n, dtype=dtype) for n in (8, 6)) if past else (None, None)),
        None if lengths is None else np.array(lengths),
    ]
    if mask is not None:
        shape, kind = mask
        inputs[3] = rng.random(shape) < 0.7 if kind is bool else normal(rng, *shape, dtype=dtype)
    if flat:
        inputs[:3] = (x.swapaxes(1, 2).reshape(2, x.shape[2], -1).copy() for x in inputs[:3])
        attributes |= {"q_num_heads": 4, "kv_num_heads": 2}
    while inputs[-1] is None:
        inputs.pop()
    return inputs, attributes


ATTENTION = {
    "plain": {},
    "causal": {"is_causal": 1},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 2.0},
    "boolean mask": {"mask": ((3, 5), bool)},
    "mask": {"mask": ((2, 1, 3, 5), float)},
    "mask of each head, softcap, causal": {"mask": ((2, 4, 3, 5), float), "softcap": 3.0, "is_causal": 1},
    "past": {"past": 4},
    "past, causal": {"past": 4, "is_causal": 1},
    "past, mask": {"past": 4, "mask": ((3, 9), float)},
    "one row": {"past": 4, "rows": 1, "keys": 1, "is_causal": 1},
    "heads together": {"flat": True},
    "heads together, past, causal": {"flat": True, "past": 4, "is_causal": 1},
    "softmax in float32": {"softmax_precision": 1},
}


# Half-precision scores and shares are rounded on the way, each side at its own places: a few units in the last place.
@TYPES
@pytest.mark.parametrize("version", [23, 24])
@pytest.mark.parametrize("variant", ATTENTION.values(), ids=ATTENTION)
def test_attention(rng, variant, version, dtype):
    inputs, attributes = attention(rng, dtype, **variant)
    outputs = 3 if "past" in variant else 1
    compare("Attention", version, inputs, attributes, outputs, tolerance=1 if dtype == np.float32 else 4)


@TYPES
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", [None, ((3, 5), float)])
def test_attention_over_a_cache_at_capacity(rng, mask, causal, dtype):
    inputs, attributes = attention(rng, dtype, lengths=[3, 5], mask=mask, is_causal=causal)
    compare("Attention", 24, inputs, attributes, tolerance=1 if dtype == np.float32 else 4)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("mask", [None, ((3, 5), float)])
@pytest.mark.parametrize("version", [23, 24])
def test_scores_of_attention(rng, version, mask, softcap, mode):
    inputs, attributes = attention(rng, np.float32, mask=mask, qk_matmul_output_mode=mode, softcap=softcap)
    compare("Attention", version, inputs, attributes, 4)


def test_a_query_that_sees_nothing_gives_zeros(rng):
    inputs, attributes = attention(rng, np.float32)
    inputs.append(np.array([[True] * 5, [False] * 5, [True] * 5]))
    (y,) = run_in_fallback("Attention", inputs, attributes, domain="", version=24)
    assert (y[:, :, 1] == 0).all() and (y[:, :, ::2] != 0).all()


def test_a_window_of_attention_is_a_mask(rng):
    inputs, attributes = attention(rng, np.float32, past=4)
    windowed = run_in_fallback(
        "Attention", inputs, {**attributes, "left_window_size": 2, "right_window_size": 0}, domain="", version=25
    )
    behind = np.arange(4, 7)[:, None] - np.arange(9)
    inputs[3] = (behind >= 0) & (behind <= 2)
    masked, *_ = run_in_onnxruntime("Attention", inputs, attributes, 3, domain="", version=24)
    assert distance(windowed[0], masked, 64) < 1


@TYPES
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rotary", [0, 8])
@pytest.mark.parametrize("four", [False, True])
@pytest.mark.parametrize("positions", [False, True])
def test_rotary_embedding(rng, positions, four, rotary, interleaved, dtype):
    half = (rotary or 16) // 2
    caches = [normal(rng, *((24, half) if positions else (2, 5, half)), dtype=dtype) for _ in range(2)]
    x = normal(rng, *((2, 3, 5, 16) if four else (2, 5, 48)), dtype=dtype)
    ids = [rng.integers(0, 24, (2, 5))] if positions else []
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": rotary, **({} if four else {"num_heads": 3})}
    # Products are rounded to half precision before they are added.
    compare("RotaryEmbedding", 23, [x, *caches, *ids], attributes, tolerance=1 if dtype == np.float32 else 2)


@TYPES
@pytest.mark.parametrize("axis", [-1, 1])
def test_root_mean_square_normalization(rng, axis, dtype):
    x = normal(rng, 2, 3, 8, dtype=dtype) * dtype(100)
    compare("RMSNormalization", 23, [x, normal(rng, *x.shape[axis:], dtype=dtype)], {"axis": axis, "epsilon": 1e-3})


@TYPES
@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("places", [None, [1, 3], "wraps"])
@pytest.mark.parametrize("axis", [-2, 1])
def test_tensor_scatter(rng, axis, places, mode, dtype):
    if places == "wraps":
        places = [1, 5] if mode == "circular" else [1, 4]
    cache, new = ((2, 6, 4), (2, 2, 4)) if axis == 1 else ((2, 3, 6, 4), (2, 3, 2, 4))
    inputs = [normal(rng, *cache, dtype=dtype), normal(rng, *new, dtype=dtype)]
    if places is not None:
        inputs.append(np.array(places))
    compare("TensorScatter", 24, inputs, {"mode": mode, "axis": axis})


@pytest.mark.parametrize(
    ("operator", "version", "shapes", "attributes"),
    [
        ("Attention", 24, [(2, 4, 3, 8), (2, 2, 5, 7), (2, 2, 5, 6)], {}),
        ("Attention", 24, [(2, 3, 32), (2, 5, 16), (2, 5, 12)], {}),
        ("RotaryEmbedding", 23, [(2, 5, 48), (2, 5, 7), (2, 5, 8)], {"num_heads": 3}),
        ("TensorScatter", 24, [(2, 3, 6, 4), (2, 3, 2, 5)], {}),
    ],
)
def test_refusals_name_operator_node_and_shapes(rng, operator, version, shapes, attributes):
    listed = r", ".join(rf"float32\[{', '.join(map(str, shape))}\]" for shape in shapes)
    with pytest.raises(OperatorError, match=rf"{operator}-\d+ 'tested' cannot take {listed}"):
        run_in_fallback(operator, [normal(rng, *s) for s in shapes], attributes, domain="", version=version)
