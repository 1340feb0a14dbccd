"""Against onnxruntime, and where its CPU provider lacks a variant against a composition of what it has."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import distance, run_in_onnxruntime
from group_query import VARIANTS, group_query_node
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenmill.errors import OperatorError
from tokenmill_reference.contrib.group_query_attention import group_query_attention

TERMS = 64


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_agrees_with_onnxruntime(agrees, rng, variant):
    inputs, attributes = group_query_node(rng, **variant)
    agrees("GroupQueryAttention", inputs, attributes, 3, terms=TERMS)


@pytest.mark.parametrize("output", [1, 2])
@pytest.mark.parametrize(
    "variant", [{}, {"softcap": 2.0, "bias": (1, 1)}, {"local_window_size": 2}, {"rows": 1, "past": 6, "capacity": 20}]
)
def test_scores_and_probabilities(agrees, rng, variant, output):
    inputs, attributes = group_query_node(rng, qk_output=output, **variant)
    agrees("GroupQueryAttention", inputs, attributes, 4, terms=TERMS)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(data=st.data())
def test_variants_combine(agrees, rng, data):
    groups = data.draw(st.integers(1, 3))
    rows, past = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 6))
    inputs, attributes = group_query_node(
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
    inputs, attributes = group_query_node(rng, **variant)
    expected = run_in_onnxruntime("GroupQueryAttention", inputs, attributes, 3)
    actual = group_query_attention(inputs, attributes, 3)
    for index, (rows, length) in enumerate(zip(valid, inputs[5] + 1, strict=True)):
        assert distance(actual[0][index, :rows], expected[0][index, :rows], TERMS) < 1
        for present in (1, 2):
            assert distance(actual[present][index, :, :length], expected[present][index, :, :length], TERMS) < 1


def test_chunks_and_single_tokens_give_what_one_prompt_gives(rng):
    inputs, attributes = group_query_node(rng, rows=7, rotary=16, local_window_size=4)
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
    inputs, attributes = group_query_node(rng, rows=4, past=3, rotary=16, norm=True, qk_norm_epsilon=1e-3)
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
    inputs, attributes = group_query_node(rng, rows=1, past=6, capacity=20, rotary=16)
    for value in inputs:
        if value is not None:
            value.flags.writeable = False
    group_query_attention(inputs, attributes, 3)


@pytest.mark.parametrize("change", [{"k_quant_type": "PER_TENSOR"}, {"sliding_window_cache": 1}])
def test_refuses_what_is_left_out(rng, change):
    inputs, attributes = group_query_node(rng)
    with pytest.raises(OperatorError, match="export with"):
        group_query_attention(inputs, {**attributes, **change}, 3)


def test_refuses_lengths_that_do_not_fit_the_cache(rng):
    inputs, attributes = group_query_node(rng, rows=1, past=6, capacity=8)
    inputs[5] = np.array([12], np.int32)
    with pytest.raises(OperatorError, match=r"\[13\] tokens after the step.*holds 8"):
        group_query_attention(inputs, attributes, 3)
