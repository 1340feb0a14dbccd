"""Against onnxruntime, and where its CPU provider lacks a variant against a composition of what it has."""

from __future__ import annotations

import math

import numpy as np
import pytest
from conftest import distance, run_in_onnxruntime
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenmill.errors import OperatorError
from tokenmill_reference.contrib.group_query_attention import group_query_attention

TERMS = 64
CACHE_ROWS = 64


def node(
    rng,
    *,
    batch=1,
    rows=5,
    heads=4,
    groups=2,
    head_size=16,
    past=0,
    capacity=0,
    lengths=None,
    total=None,
    packed=False,
    rotary=0,
    interleaved=0,
    position_ids=None,
    bias=None,
    sink=False,
    norm=False,
    query_lengths=None,
    dtype=np.float32,
    **attributes,
):
    """Random inputs and attributes. `past` tokens are held; the past's extent is that or the capacity."""

    def normal(*shape):
        return rng.standard_normal(shape).astype(dtype)

    lengths = np.array([past + rows] * batch if lengths is None else lengths, np.int32)
    total = int(lengths.max()) if total is None else total
    query, key, value = (normal(batch, rows, n * head_size) for n in (heads, groups, groups))
    extent = capacity or past
    angles = rng.uniform(0, 2 * math.pi, (CACHE_ROWS, rotary // 2))
    inputs = [
        *([np.concatenate((query, key, value), axis=-1), None, None] if packed else [query, key, value]),
        *((normal(batch, groups, extent, head_size) for _ in range(2)) if extent else (None, None)),
        lengths - 1,
        np.array(total, np.int32),
        *((np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)) if rotary else (None, None)),
        position_ids,
        None if bias is None else normal(*bias, rows, total),
        normal(heads) if sink else None,
        None,
        None,
        *((normal(head_size), normal(head_size)) if norm else (None, None)),
        None if query_lengths is None else np.array(query_lengths, np.int32),
    ]
    while inputs[-1] is None:
        inputs.pop()
    return inputs, {
        "num_heads": heads,
        "kv_num_heads": groups,
        "do_rotary": int(rotary > 0),
        "rotary_interleaved": interleaved,
        **attributes,
    }


VARIANTS = {
    "prompt": {},
    "packed": {"packed": True, "rotary": 16},
    "interleaved": {"rotary": 16, "interleaved": 1},
    "partial rotary": {"head_size": 32, "rotary": 16},
    "partial interleaved": {"head_size": 32, "rotary": 16, "interleaved": 1},
    "one head each": {"heads": 2, "groups": 2},
    "one group": {"heads": 4, "groups": 1},
    "decode": {"rows": 1, "past": 6, "rotary": 16},
    "chunk": {"rows": 4, "past": 6, "rotary": 16},
    "prompt at capacity": {"capacity": 20, "rotary": 16},
    "decode at capacity": {"rows": 1, "past": 6, "capacity": 20, "rotary": 16},
    "chunk at capacity": {"rows": 3, "past": 6, "capacity": 20, "rotary": 16},
    "full buffer": {"rows": 1, "past": 19, "capacity": 20},
    "batch decode": {"batch": 3, "rows": 1, "past": 9, "lengths": [10, 4, 7], "rotary": 16},
    "batch decode at capacity": {"batch": 3, "rows": 1, "capacity": 16, "lengths": [10, 4, 7], "rotary": 16},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 5.0},
    "window": {"rows": 9, "local_window_size": 3},
    "window decode": {"rows": 1, "past": 9, "local_window_size": 3},
    "window chunk": {"rows": 4, "past": 9, "local_window_size": 3},
    "smooth softmax": {"smooth_softmax": 1},
    "head sink": {"sink": True},
    "head sink, window, softcap": {"sink": True, "rows": 4, "past": 9, "local_window_size": 5, "softcap": 3.0},
    "bias": {"bias": (1, 4)},
    "bias of each sequence": {"batch": 2, "bias": (2, 1)},
    "bias after softcap": {"bias": (1, 1), "rows": 4, "past": 6, "softcap": 3.0},
    "positions of a decode": {"rows": 1, "past": 4, "rotary": 16, "position_ids": np.array([[9]])},
    "positions of a chunk": {"rows": 3, "past": 4, "rotary": 16, "position_ids": np.array([[9, 2, 1]])},
    "first position of a prompt": {"rotary": 16, "position_ids": np.array([[3, 7, 1, 2, 9]])},
    "bidirectional": {"causal": 0},
    "bidirectional with past": {"rows": 3, "past": 4, "causal": 0},
    "float16": {"dtype": np.float16, "rotary": 16},
    "float16 decode": {"dtype": np.float16, "rotary": 16, "rows": 1, "past": 6},
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_agrees_with_onnxruntime(agrees, rng, variant):
    inputs, attributes = node(rng, **variant)
    agrees("GroupQueryAttention", inputs, attributes, 3, terms=TERMS)


@pytest.mark.parametrize("output", [1, 2])
@pytest.mark.parametrize(
    "variant", [{}, {"softcap": 2.0, "bias": (1, 1)}, {"local_window_size": 2}, {"rows": 1, "past": 6, "capacity": 20}]
)
def test_scores_and_probabilities(agrees, rng, variant, output):
    inputs, attributes = node(rng, qk_output=output, **variant)
    agrees("GroupQueryAttention", inputs, attributes, 4, terms=TERMS)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(data=st.data())
def test_variants_combine(agrees, rng, data):
    groups = data.draw(st.integers(1, 3))
    rows, past = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 6))
    inputs, attributes = node(
        rng,
        rows=rows,
        past=past,
        groups=groups,
        heads=groups * data.draw(st.integers(1, 3)),
        head_size=data.draw(st.sampled_from([16, 32])),
        capacity=data.draw(st.sampled_from([0, 12, 20])),
        packed=data.draw(st.booleans()),
        rotary=data.draw(st.sampled_from([0, 16])),
        interleaved=data.draw(st.integers(0, 1)),
        bias=data.draw(st.sampled_from([None, (1, 1)])),
        sink=data.draw(st.booleans()),
        softcap=data.draw(st.sampled_from([0.0, 4.0])),
        local_window_size=data.draw(st.sampled_from([-1, 1, 4])),
        scale=data.draw(st.sampled_from([0.0, 0.2])),
    )
    agrees("GroupQueryAttention", inputs, attributes, 3, terms=TERMS)


@pytest.mark.parametrize(
    ("variant", "valid"),
    [
        ({"batch": 3, "rows": 5, "lengths": [5, 3, 2], "rotary": 16}, [5, 3, 2]),
        ({"rows": 6, "capacity": 20, "lengths": [8], "query_lengths": [4], "total": 20, "rotary": 16}, [4]),
        (
            {
                "batch": 3,
                "rows": 4,
                "capacity": 20,
                "lengths": [8, 3, 5],
                "query_lengths": [4, 2, 0],
                "total": 20,
                "rotary": 16,
            },
            [4, 2, 0],
        ),
    ],
    ids=["right-padded prompts", "right-padded chunk", "right-padded chunks, one idle"],
)
def test_padding_rows_and_cache_rows_behind_the_length_are_undefined(rng, variant, valid):
    inputs, attributes = node(rng, **variant)
    expected = run_in_onnxruntime("GroupQueryAttention", inputs, attributes, 3)
    actual = group_query_attention(inputs, attributes, 3)
    for index, (rows, length) in enumerate(zip(valid, inputs[5] + 1, strict=True)):
        assert distance(actual[0][index, :rows], expected[0][index, :rows], TERMS) < 1
        for present in (1, 2):
            assert distance(actual[present][index, :, :length], expected[present][index, :, :length], TERMS) < 1


def test_chunks_and_single_tokens_give_what_one_prompt_gives(rng):
    inputs, attributes = node(rng, rows=7, rotary=16, local_window_size=4)
    whole = group_query_attention(inputs, attributes, 3)
    held: list = [np.zeros((1, 2, 16, 16), np.float32)] * 2
    outputs, start = [], 0
    for rows in (3, 1, 2, 1):
        part = [x[:, start : start + rows] for x in inputs[:3]]
        start += rows
        step = [*part, *held, np.array([start - 1], np.int32), np.array(start, np.int32), *inputs[7:]]
        output, *held = group_query_attention(step, attributes, 3)
        outputs.append(output)
    assert distance(np.concatenate(outputs, axis=1), whole[0]) < 1
    np.testing.assert_array_equal(held[0][:, :, :7], whole[1])


def test_query_and_key_norms_are_a_normalization_of_each_head_before_it(rng):
    """onnxruntime's CPU provider refuses the norm weights: composed from its SimplifiedLayerNormalization."""
    inputs, attributes = node(rng, rows=4, past=3, rotary=16, norm=True, qk_norm_epsilon=1e-3)
    actual = group_query_attention(inputs, attributes, 3)
    plain = list(inputs[:9])
    for index, weight in ((0, inputs[14]), (1, inputs[15])):
        heads = plain[index].reshape(1, 4, -1, 16)
        norm = run_in_onnxruntime("SimplifiedLayerNormalization", [heads, weight], {"epsilon": 1e-3}, domain="")[0]
        plain[index] = norm.reshape(1, 4, -1)
    attributes.pop("qk_norm_epsilon")
    expected = run_in_onnxruntime("GroupQueryAttention", plain, attributes, 3)
    for ours, theirs in zip(actual, expected, strict=True):
        assert distance(ours, theirs, TERMS) < 1


def test_inputs_are_not_written(rng):
    inputs, attributes = node(rng, rows=1, past=6, capacity=20, rotary=16)
    for value in inputs:
        if value is not None:
            value.flags.writeable = False
    group_query_attention(inputs, attributes, 3)


@pytest.mark.parametrize("change", [{"k_quant_type": "PER_TENSOR"}, {"sliding_window_cache": 1}])
def test_refuses_what_is_left_out(rng, change):
    inputs, attributes = node(rng)
    with pytest.raises(OperatorError, match="export with"):
        group_query_attention(inputs, {**attributes, **change}, 3)


def test_refuses_lengths_that_do_not_fit_the_cache(rng):
    inputs, attributes = node(rng, rows=1, past=6, capacity=8)
    inputs[5] = np.array([12], np.int32)
    with pytest.raises(OperatorError, match=r"\[13\] tokens after the step.*holds 8"):
        group_query_attention(inputs, attributes, 3)
