from __future__ import annotations

import numpy as np
import pytest
from conftest import distance
from tokenmill.errors import OperatorError
from tokenmill_reference.contrib.multi_head_attention import attention, multi_head_attention

TERMS = 64
MASKS = {
    "ends": np.array([2, 3], np.int32),
    "cumulated": np.array([2, 3, 0, 3, 6, 0, 3, 6], np.int32),
    "keys": np.array([[1, 1, 0], [0, 1, 1]], np.int32),
    "queries and keys": np.array([[[1, 0, 0], [1, 1, 0], [0, 1, 1]], [[1, 1, 1], [0, 1, 0], [1, 0, 1]]], np.int32),
    "total": np.array([[1, 1, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 0]], np.int32),
    "ends over a past": np.array([5, 7], np.int32),
}


def heads_apart(x, heads):
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2).copy()


def mha(rng, *, rows=3, keys=None, value_size=8, bias=False, mask=None, extra=None, past=0, held=None, **attributes):
    """Random inputs of a MultiHeadAttention of 2 sequences and 2 heads of size 8."""

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    keys = keys or rows
    inputs = [
        normal(2, rows, 16),
        normal(2, keys, 16),
        normal(2, keys, 2 * value_size),
        normal(32 + 2 * value_size) if bias else None,
        MASKS.get(mask),
        None if extra is None else normal(*extra),
        *((normal(2, 2, past, 8), normal(2, 2, past, value_size)) if past else (None, None)),
        None if held is None else np.array([held], np.int32),
    ]
    while inputs[-1] is None:
        inputs.pop()
    return inputs, {"num_heads": 2, **attributes}


VARIANTS = {
    "plain": {},
    "bias": {"bias": True},
    "cross": {"keys": 5},
    "another value size": {"value_size": 4, "bias": True},
    "unidirectional": {"unidirectional": 1},
    "past": {"past": 4, "bias": True},
    "past, unidirectional": {"past": 4, "unidirectional": 1},
    "shared buffer": {"past": 10, "held": 4},
    "shared buffer, one row": {"past": 10, "held": 4, "rows": 1},
    "attention bias": {"extra": (2, 2, 3, 3)},
    "broadcast attention bias": {"extra": (1, 1, 3, 3)},
    "attention bias over a past": {"extra": (1, 2, 3, 7), "past": 4},
    "scale": {"scale": 0.3},
    "mask of ends": {"mask": "ends"},
    "mask of cumulated lengths": {"mask": "cumulated"},
    "mask of keys": {"mask": "keys"},
    "mask of queries and keys": {"mask": "queries and keys"},
    "mask over a past": {"mask": "total", "past": 4},
    "mask of ends over a past": {"mask": "ends over a past", "past": 4},
    "filter value": {"mask": "keys", "mask_filter_value": -3.0},
    "mask, unidirectional": {"mask": "queries and keys", "unidirectional": 1, "mask_filter_value": -9.0},
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_multi_head_attention(agrees, rng, variant):
    inputs, attributes = mha(rng, **variant)
    agrees("MultiHeadAttention", inputs, attributes, 3, terms=TERMS)


@pytest.mark.parametrize("bias", [False, True])
def test_keys_with_heads_apart_are_a_finished_cache(agrees, rng, bias):
    inputs, attributes = mha(rng, keys=5, bias=bias)
    inputs[1:3] = (heads_apart(x, 2) for x in inputs[1:3])
    agrees("MultiHeadAttention", inputs, attributes, terms=TERMS)


@pytest.mark.parametrize("bias", [False, True])
def test_packed_inputs_are_the_separate_ones(rng, bias):
    """onnxruntime's CPU provider has no packed forms."""
    inputs, attributes = mha(rng, bias=bias)
    query, key, value = (x.reshape(2, 3, 2, 8) for x in inputs[:3])
    expected = multi_head_attention(inputs, attributes, 3)
    rest = inputs[3:]
    for packed in (
        [np.stack((query, key, value), axis=3), None, None],
        [inputs[0], np.stack((key, value), axis=3), None],
    ):
        for ours, theirs in zip(multi_head_attention([*packed, *rest], attributes, 3), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_fourth_output_is_the_probabilities(rng):
    inputs, attributes = mha(rng, value_size=8)
    output, _, value, probabilities = multi_head_attention(inputs, attributes, 4)
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1, rtol=1e-6)  # float32 rounding of 3 terms
    assert distance((probabilities @ value).swapaxes(1, 2).reshape(2, 3, 16), output, 3) < 1


def com_attention(
    rng, *, sizes=None, bias=True, mask=None, past=0, extra=None, **attributes
) -> tuple[list[np.ndarray | None], dict]:
    """Random inputs of an Attention of 2 sequences of 3 rows, 2 heads of size 8."""

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    width = sum(sizes or [16] * 3)
    inputs = [
        normal(2, 3, 6),
        normal(6, width),
        normal(width) if bias else None,
        mask if isinstance(mask, np.ndarray) else MASKS.get(mask),
        normal(2, 2, 2, past, 8) if past else None,
        None if extra is None else normal(*extra),
    ]
    while inputs[-1] is None:
        inputs.pop()
    return inputs, {"num_heads": 2, **({"qkv_hidden_sizes": sizes} if sizes else {}), **attributes}


ATTENTION = {
    "plain": {},
    "no bias": {"bias": False},
    "unidirectional": {"unidirectional": 1},
    "past": {"past": 4},
    "past, unidirectional": {"past": 4, "unidirectional": 1},
    "attention bias": {"extra": (2, 2, 3, 3)},
    "scale": {"scale": 0.4},
    "ends": {"mask": "ends"},
    "ends and starts": {"mask": np.array([2, 3, 0, 1], np.int32)},
    "ends and starts over a past": {"mask": np.array([6, 7, 1, 2], np.int32), "past": 4, "unidirectional": 1},
    "cumulated": {"mask": "cumulated"},
    "keys": {"mask": "keys"},
    "queries and keys": {"mask": "queries and keys"},
    "mask over a past": {"mask": "total", "past": 4, "unidirectional": 1, "mask_filter_value": -9.0},
    "filter value": {"mask": "keys", "mask_filter_value": -3.0},
}


@pytest.mark.parametrize("variant", ATTENTION.values(), ids=ATTENTION)
def test_attention(agrees, rng, variant):
    inputs, attributes = com_attention(rng, **variant)
    agrees("Attention", inputs, attributes, 2, terms=TERMS)


def test_attention_with_another_value_size(agrees, rng):
    inputs, attributes = com_attention(rng, sizes=[16, 16, 8])
    agrees("Attention", inputs, attributes, terms=TERMS)


def test_square_mask_is_its_rows_of_this_step(rng):
    """onnxruntime's CPU provider has no 4-D masks."""
    square = np.tril(np.ones((2, 1, 10, 10), np.int32))
    square[1, 0, :, 2] = 0
    inputs, attributes = com_attention(rng, mask=square, past=4)
    actual = attention(inputs, attributes, 2)
    inputs[3] = square[:, 0, 4:7, :7]
    for ours, theirs in zip(actual, attention(inputs, attributes, 2), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_shared_buffer_of_attention_is_the_concatenated_past(rng):
    inputs, attributes = com_attention(rng, past=4, unidirectional=1)
    output, present = attention(inputs, attributes, 2)
    buffer = np.zeros((2, 2, 2, 10, 8), np.float32)
    buffer[:, :, :, :4] = inputs[4]
    shared = [*inputs[:4], buffer, None, np.array([4], np.int32)]
    shared_output, shared_present = attention(shared, {**attributes, "past_present_share_buffer": 1}, 2)
    np.testing.assert_array_equal(shared_output, output)
    np.testing.assert_array_equal(shared_present[:, :, :, :7], present)


def test_refuses_what_is_left_out(rng):
    inputs, attributes = com_attention(rng)
    with pytest.raises(OperatorError, match="do_rotary"):
        attention(inputs, {**attributes, "do_rotary": 1}, 1)
    inputs, attributes = mha(rng)
    with pytest.raises(OperatorError, match="beam"):
        multi_head_attention([*inputs, *[None] * 6, np.zeros((2, 1, 4), np.int32)], attributes, 1)
