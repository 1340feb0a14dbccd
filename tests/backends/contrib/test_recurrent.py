"""Against onnxruntime; chunks of a sequence against the whole of it."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import distance, run_in_onnxruntime
from tokenmill.errors import OperatorError
from tokenmill_reference.contrib import operators


def normal(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def run(name, inputs, attributes, outputs=2):
    return operators()["com.microsoft", name](inputs, attributes, outputs)


# --- CausalConvWithState ---------------------------------------------------------------------------------------------


def conv(rng, *, rows=7, taps=4, bias=False, past=False, **attributes):
    """Random inputs of 2 sequences of 6 channels, along one axis."""
    held = (taps - 1) * attributes.get("dilation", 1)
    last, window = attributes.get("channels_last", 0), attributes.get("state_window", 0)
    state = (2, held, 6) if last else (2, 6, held)
    inputs = [
        normal(rng, *((2, rows, 6) if last else (2, 6, rows))),
        normal(rng, 6, 1, taps),
        normal(rng, 6) if bias else None,
        normal(rng, *((window, *state) if window else state)) if past else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    return inputs, attributes


CONV = {
    "plain": {},
    "bias": {"bias": True},
    "past": {"past": True, "bias": True},
    "one row": {"past": True, "rows": 1},
    "fewer rows than taps": {"past": True, "rows": 2},
    "silu": {"activation": "silu", "bias": True},
    "swish": {"activation": "swish"},
    "one tap": {"taps": 1},
    "dilation": {"dilation": 2, "past": True},
    "channels last": {"channels_last": 1, "past": True, "bias": True},
    "channels last, dilation": {"channels_last": 1, "past": True, "dilation": 3},
}


@pytest.mark.parametrize("variant", CONV.values(), ids=CONV)
def test_causal_convolution(agrees, rng, variant):
    inputs, attributes = conv(rng, **variant)
    agrees("CausalConvWithState", inputs, attributes, 2, terms=8)


@pytest.mark.parametrize(
    ("extents", "kernel"), [((5, 7), (3, 4)), ((5, 7), (2, 3)), ((3, 4, 6), (3, 2, 3))], ids=["2-D", "even", "3-D"]
)
@pytest.mark.parametrize("dilation", [1, 2])
def test_causal_convolution_of_more_axes_is_a_padded_convolution(rng, extents, kernel, dilation):
    """Zeros around the other axes, history before the last: `Conv` does it with padding, which onnxruntime has."""
    held = (kernel[-1] - 1) * dilation
    x, weight, bias = normal(rng, 2, 4, *extents), normal(rng, 4, 1, *kernel), normal(rng, 4)
    past = normal(rng, 2, 4, *extents[:-1], held)
    attributes = {"ndim": len(extents), "dilation": dilation}
    y, present = run("CausalConvWithState", [x, weight, bias, past], attributes)
    extended = np.concatenate((past, x), axis=-1)
    pads = [*((k - 1) // 2 for k in kernel[:-1]), 0, *(k // 2 for k in kernel[:-1]), 0]
    plain = {"group": 4, "pads": pads, "dilations": [1] * (len(extents) - 1) + [dilation]}
    (expected,) = run_in_onnxruntime("Conv", [extended, weight, bias], plain, domain="")
    assert distance(y, expected, 64) < 1
    np.testing.assert_array_equal(present, extended[..., -held:])


def test_channel_axes_behind_the_sequence_are_kept(rng):
    inputs, attributes = conv(rng, channels_last=1, past=True)
    y, present = run("CausalConvWithState", inputs, attributes)
    inputs[0], inputs[3] = (inputs[i].reshape(*inputs[i].shape[:2], 2, 3) for i in (0, 3))
    apart, apart_present = run("CausalConvWithState", inputs, attributes)
    np.testing.assert_array_equal(apart.reshape(y.shape), y)
    np.testing.assert_array_equal(apart_present.reshape(present.shape), present)


@pytest.mark.parametrize("last", [0, 1])
def test_chunks_of_a_convolution_give_what_the_whole_gives(rng, last):
    inputs, attributes = conv(rng, past=True, channels_last=last)
    axis = 1 if last else 2
    y, present = run("CausalConvWithState", inputs, attributes)
    outputs, held = [], inputs[3]
    for part in np.split(inputs[0], [3, 4], axis=axis):
        output, held = run("CausalConvWithState", [part, inputs[1], None, held], attributes)
        outputs.append(output)
    np.testing.assert_array_equal(np.concatenate(outputs, axis=axis), y)
    np.testing.assert_array_equal(held, present)


@pytest.mark.parametrize(("window", "rows"), [(1, 4), (3, 4), (5, 2)])
@pytest.mark.parametrize("last", [0, 1])
def test_window_holds_the_states_of_the_prefixes(rng, last, window, rows):
    """onnxruntime's CPU provider has no windows: it computes each prefix."""
    inputs, attributes = conv(rng, rows=rows, past=True, channels_last=last, state_window=window)
    y, present = run("CausalConvWithState", inputs, attributes)
    plain = {"channels_last": last}
    for slot in range(window):
        count = rows - window + slot + 1
        if count <= 0:
            assert (present[slot] == 0).all()
            continue
        prefix = inputs[0][:, :count] if last else inputs[0][:, :, :count]
        given = [prefix.copy(), inputs[1], None, inputs[3][-1]]
        expected, state = run_in_onnxruntime("CausalConvWithState", given, plain, 2)
        assert distance(present[slot], state) < 1
    assert distance(y, expected, 8) < 1


# --- LinearAttention -------------------------------------------------------------------------------------------------


def linear(rng, rule, *, rows=5, heads=2, groups=2, wide_decay=False, one_beta=False, past=False, **attributes):
    """Random inputs of 2 sequences; keys of size 8 and length 1, values of size 6."""
    key = normal(rng, 2, rows, groups, 8)
    window = attributes.get("state_window", 0)
    state = (2, groups, 8, 6)
    inputs = [
        normal(rng, 2, rows, heads * 8),
        (key / np.linalg.norm(key, axis=-1, keepdims=True)).reshape(2, rows, -1),
        normal(rng, 2, rows, groups * 6),
        normal(rng, *((window, *state) if window else state)) if past else None,
        -rng.uniform(0, 2, (2, rows, groups * (8 if wide_decay else 1))).astype(np.float32)
        if "gated" in rule
        else None,
        rng.uniform(0, 1, (2, rows, 1 if one_beta else groups)).astype(np.float32) if "delta" in rule else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    return inputs, {"q_num_heads": heads, "kv_num_heads": groups, "update_rule": rule, **attributes}


LINEAR = {
    "plain": {},
    "past": {"past": True},
    "one row": {"past": True, "rows": 1},
    "several queries to a state": {"heads": 4, "past": True},
    "several states to a query": {"groups": 4, "past": True},
    "scale": {"scale": 0.7},
    "decay of each key feature": {"wide_decay": True, "past": True},
    "one rate for all": {"one_beta": True, "past": True},
    "many rows": {"rows": 130, "past": True, "chunk_size": 64},
}


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("variant", LINEAR.values(), ids=LINEAR)
def test_linear_attention(agrees, rng, rule, variant):
    inputs, attributes = linear(rng, rule, **variant)
    # Every row of a state carries the roundings of the rows before it.
    agrees("LinearAttention", inputs, attributes, 2, terms=64)


@pytest.mark.parametrize(("window", "rows"), [(1, 4), (3, 4), (5, 2)])
def test_window_of_linear_attention_holds_the_states_of_the_prefixes(rng, window, rows):
    """onnxruntime's CPU provider has no windows: it computes each prefix."""
    inputs, attributes = linear(rng, "gated_delta", rows=rows, past=True, state_window=window)
    output, present = run("LinearAttention", inputs, attributes)
    attributes.pop("state_window")
    for slot in range(window):
        count = rows - window + slot + 1
        if count <= 0:
            assert (present[slot] == 0).all()
            continue
        prefix = [inputs[3][-1] if index == 3 else x[:, :count] for index, x in enumerate(inputs)]
        expected, state = run_in_onnxruntime("LinearAttention", prefix, attributes, 2)
        assert distance(present[slot], state, 64) < 1
    assert distance(output, expected, 64) < 1


def test_default_rule_is_gated_delta(rng):
    inputs, attributes = linear(rng, "gated_delta", past=True)
    expected = run("LinearAttention", inputs, attributes)
    attributes.pop("update_rule")
    for ours, theirs in zip(run("LinearAttention", inputs, attributes), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_chunks_of_linear_attention_give_what_the_whole_gives(rng):
    inputs, attributes = linear(rng, "gated_delta", past=True)
    output, present = run("LinearAttention", inputs, attributes)
    held, outputs = inputs[3], []
    for rows in (slice(0, 2), slice(2, 3), slice(3, 5)):
        part = [x[:, rows] for x in inputs]
        part[3] = held
        y, held = run("LinearAttention", part, attributes)
        outputs.append(y)
    # The state is rounded to float32 between the chunks.
    assert distance(np.concatenate(outputs, axis=1), output, 8) < 1
    assert distance(held, present, 8) < 1


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gate(agrees, rng, dtype):
    a, b = normal(rng, 2, 5, 4, dtype=dtype), normal(rng, 2, 5, 4, dtype=dtype)
    bias, scale = normal(rng, 4), -np.exp(normal(rng, 4))
    agrees("LinearAttentionGate", [a, bias, scale, b], {}, 2, terms=4)
    agrees("LinearAttentionGate", [30 * a, bias, scale], {}, 1, terms=4)


# --- what is refused -------------------------------------------------------------------------------------------------


def changed(inputs, index, value):
    return [value if at == index else x for at, x in enumerate(inputs)]


def test_convolution_refuses_what_does_not_fit(rng):
    inputs, attributes = conv(rng, past=True)
    zeros = np.zeros
    for index, value, message in [
        (1, zeros((5, 1, 4), np.float32), r"weight of shape \[5, 1, 4\].*\[6, 1, 'any'\]"),
        (3, zeros((2, 6, 2), np.float32), r"past_state of shape \[2, 6, 2\].*\[2, 6, 3\]"),
        (3, zeros((1, 6, 3), np.float32), r"past_state of shape \[1, 6, 3\].*\[2, 6, 3\]"),
    ]:
        with pytest.raises(OperatorError, match=message):
            run("CausalConvWithState", changed(inputs, index, value), attributes)
    with pytest.raises(OperatorError, match=r"bias of shape \[5\].*\[6\]"):
        run("CausalConvWithState", [*inputs[:2], zeros(5, np.float32)], attributes)
    for attribute in ({"activation": "relu"}, {"state_update_capacity": 2}, {"state_length": 9}):
        with pytest.raises(OperatorError, match=next(iter(attribute))):
            run("CausalConvWithState", inputs, {**attributes, **attribute})


def test_linear_attention_refuses_what_does_not_fit(rng):
    inputs, attributes = linear(rng, "gated_delta", past=True)
    zeros = np.zeros
    for index, value, message in [
        (3, zeros((2, 2, 6, 8), np.float32), r"past_state of shape \[2, 2, 6, 8\].*\[2, 2, 8, 6\]"),
        (3, zeros((1, 2, 8, 6), np.float32), r"past_state of shape \[1, 2, 8, 6\].*\[2, 2, 8, 6\]"),
        (4, None, r"input 4 \(decay\) is missing"),
        (5, None, r"input 5 \(beta\) is missing"),
        (5, zeros((2, 5, 3), np.float32), r"beta of shape \[2, 5, 3\]"),
        (4, zeros((2, 5, 3), np.float32), r"decay of shape \[2, 5, 3\]"),
    ]:
        with pytest.raises(OperatorError, match=message):
            run("LinearAttention", changed(inputs, index, value), attributes)
    with pytest.raises(OperatorError, match=r"update_rule='rwkv'.*gated_delta"):
        run("LinearAttention", inputs, {**attributes, "update_rule": "rwkv"})
