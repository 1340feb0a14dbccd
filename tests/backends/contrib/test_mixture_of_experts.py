"""Against onnxruntime; what its CPU provider lacks against the formula, one token and one expert after the other."""

from __future__ import annotations

import math

import numpy as np
import pytest
from conftest import distance
from tokenmill.errors import OperatorError
from tokenmill_reference.contrib import operators

HIDDEN, INNER, EXPERTS, TOKENS = 32, 64, 5, 7


def normal(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def experts(rng, *, fused=1, bias=False, third=False, shape=(TOKENS,), scale=0.2):
    """Random inputs of a MoE."""
    inputs = [
        normal(rng, *shape, HIDDEN),
        normal(rng, math.prod(shape), EXPERTS),
        scale * normal(rng, EXPERTS, fused * INNER, HIDDEN),
        normal(rng, EXPERTS, fused * INNER) if bias else None,
        scale * normal(rng, EXPERTS, HIDDEN, INNER),
        normal(rng, EXPERTS, HIDDEN) if bias else None,
        scale * normal(rng, EXPERTS, INNER, HIDDEN) if third else None,
        normal(rng, EXPERTS, INNER) if third and bias else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    return inputs


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_the_formula(inputs, weights, biases, attributes, mixing=None):
    """float64, straight from the operator's documentation."""
    x = inputs[0].astype(np.float64).reshape(-1, HIDDEN)
    logits = inputs[1].astype(np.float64)
    shares = (
        np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True) if mixing is None else mixing.astype(np.float64)
    )
    activation, fusion = attributes.get("activation_type", "relu"), attributes.get("swiglu_fusion", 0)
    alpha, beta = attributes.get("activation_alpha", 1.0), attributes.get("activation_beta", 0.0)
    limit = attributes.get("swiglu_limit", math.inf)

    def linear(values, part, expert):
        bias = biases[part]
        return weights[part][expert].astype(np.float64) @ values + (0 if bias is None else bias[expert])

    y = np.zeros_like(x)
    for token, row in enumerate(x):
        best = sorted(range(EXPERTS), key=lambda expert: (-logits[token, expert], expert))[: attributes["k"]]
        total = sum(shares[token, expert] for expert in best) if attributes.get("normalize_routing_weights", 0) else 1
        for expert in best:
            inner = linear(row, 0, expert)
            gate, up = inner, None
            if fusion == 1:
                gate, up = inner[0::2], inner[1::2]
            elif fusion == 2:
                gate, up = inner[:INNER], inner[INNER:]
            elif weights[2] is not None:
                up = linear(row, 2, expert)
            tanh_gelu = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
            if activation == "swiglu":
                gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
                opened = gate * sigmoid(alpha * gate) * (up + beta)
            elif activation == "geglu":
                opened = tanh_gelu * up
            else:
                opened = {
                    "relu": np.maximum(gate, 0),
                    "relu2": np.maximum(gate, 0) ** 2,
                    "gelu": tanh_gelu,
                    "silu": gate * sigmoid(gate),
                    "identity": gate,
                }[activation] * (1 if up is None else up)
            y[token] += shares[token, expert] / total * linear(opened, 1, expert)
    return y.reshape(inputs[0].shape).astype(inputs[0].dtype)


def formula_of_moe(inputs, attributes):
    padded = [*inputs, *[None] * (8 - len(inputs))]
    return by_the_formula(inputs, padded[2::2], padded[3::2], attributes)


@pytest.mark.parametrize("normalize", [0, 1])
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("bias", [False, True])
def test_routing(agrees, rng, k, normalize, bias):
    inputs = experts(rng, bias=bias)
    attributes = {"k": k, "normalize_routing_weights": normalize, "activation_type": "relu"}
    agrees("MoE", inputs, attributes, terms=INNER)
    assert (
        distance(operators()["com.microsoft", "MoE"](inputs, attributes, 1)[0], formula_of_moe(inputs, attributes)) < 1
    )


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity"])
def test_plain_activations(agrees, rng, activation):
    agrees("MoE", experts(rng, bias=True, shape=(2, 3)), {"k": 2, "activation_type": activation}, terms=INNER)


SWIGLU = {"k": 2, "activation_type": "swiglu", "activation_alpha": 1.702, "activation_beta": 1.0}


@pytest.mark.parametrize("limit", [{}, {"swiglu_limit": 0.7}], ids=["no limit", "limit"])
def test_swiglu_interleaved(agrees, rng, limit):
    agrees("MoE", experts(rng, fused=2, bias=True), {**SWIGLU, "swiglu_fusion": 1, **limit}, terms=INNER)


@pytest.mark.parametrize(
    ("variant", "attributes"),
    [
        ({"fused": 2}, {**SWIGLU, "swiglu_fusion": 2, "swiglu_limit": 0.7}),
        ({"third": True}, SWIGLU),
        ({"third": True}, {"k": 2, "activation_type": "silu", "normalize_routing_weights": 1}),
        ({"fused": 2}, {"k": 2, "activation_type": "geglu", "swiglu_fusion": 1}),
        ({"fused": 2}, {"k": 2, "activation_type": "geglu", "swiglu_fusion": 2}),
        ({}, {"k": 2, "activation_type": "relu2"}),
    ],
    ids=["swiglu in halves", "swiglu of three", "gated silu", "geglu interleaved", "geglu in halves", "relu2"],
)
def test_what_onnxruntime_leaves_to_other_providers(rng, variant, attributes):
    inputs = experts(rng, bias=True, **variant)
    (y,) = operators()["com.microsoft", "MoE"](inputs, attributes, 1)
    assert distance(y, formula_of_moe(inputs, attributes)) < 1


def test_limit_may_act_on_the_activated_gate(rng):
    inputs = experts(rng, fused=2)
    attributes = {**SWIGLU, "k": EXPERTS, "swiglu_fusion": 2, "swiglu_limit": 0.4, "swiglu_limit_after_activation": 1}
    (y,) = operators()["com.microsoft", "MoE"](inputs, attributes, 1)
    shares = np.exp(inputs[1].astype(float)) / np.exp(inputs[1].astype(float)).sum(axis=-1, keepdims=True)
    expected = np.zeros((TOKENS, HIDDEN))
    for expert in range(EXPERTS):
        gate, up = np.split(inputs[0].astype(float) @ inputs[2][expert].T, 2, axis=-1)
        opened = np.minimum(gate * sigmoid(1.702 * gate), 0.4) * (np.clip(up, -0.4, 0.4) + 1)
        expected += shares[:, expert, None] * (opened @ inputs[4][expert].T)
    assert distance(y, expected.astype(np.float32)) < 1


# --- QMoE ------------------------------------------------------------------------------------------------------------


def packed(codes, bits):
    """Low-order bits first, along the last axis."""
    stream = np.unpackbits(codes[..., None], axis=-1, bitorder="little")[..., :bits]
    return np.packbits(stream.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")


def quantized(
    rng, *, bits=4, block_size=0, zeros=False, fused=1, bias=False, third=False, mixing=False, dtype=np.float32
):
    """Random inputs of a QMoE, its weights as plain numbers, its biases."""
    shapes = [(fused * INNER, HIDDEN), (HIDDEN, INNER), (INNER, HIDDEN) if third else None]
    inputs = [normal(rng, TOKENS, HIDDEN, dtype=dtype), normal(rng, TOKENS, EXPERTS, dtype=dtype)]
    zero_points, weights, biases = [], [], []
    for shape in shapes:
        if shape is None:
            inputs += [None] * 3
            zero_points.append(None)
            weights.append(None)
            biases.append(None)
            continue
        out, extent = shape
        blocks = extent // block_size if block_size else 1
        codes = rng.integers(0, 2**bits, (EXPERTS, out, extent), dtype=np.uint8)
        scales = rng.uniform(0.01, 0.05, (EXPERTS, out, blocks)).astype(dtype)
        offsets = rng.integers(0, 2**bits, (EXPERTS, out, blocks), dtype=np.uint8)
        if not zeros:
            offsets[:] = 2 ** (bits - 1)
        spread = [np.repeat(x.astype(np.float64), extent // blocks, axis=-1) for x in (offsets, scales)]
        weights.append((codes - spread[0]) * spread[1])
        biases.append(normal(rng, EXPERTS, out, dtype=dtype) if bias else None)
        inputs += [packed(codes, bits), scales if block_size else scales[..., 0], biases[-1]]
        stored = packed(offsets, bits)
        zero_points.append((stored if block_size else packed(offsets[..., 0], bits)) if zeros else None)
    inputs += [*zero_points, rng.uniform(0, 1, (TOKENS, EXPERTS)).astype(dtype) if mixing else None]
    while inputs[-1] is None:
        inputs.pop()
    return inputs, weights, biases


QUANTIZED = {"k": 2, "activation_type": "silu", "normalize_routing_weights": 1}
CONSTANTS = range(2, 14)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("block_size", [0, 16, 32])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_weights_of_every_width_are_the_formula(rng, bits, block_size, zeros):
    inputs, weights, biases = quantized(rng, bits=bits, block_size=block_size, zeros=zeros, bias=True)
    attributes = {**QUANTIZED, "expert_weight_bits": bits, "block_size": block_size}
    (y,) = operators()["com.microsoft", "QMoE"](inputs, attributes, 1)
    assert distance(y, by_the_formula(inputs, weights, biases, attributes), HIDDEN) < 1


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("accuracy_level", [0, 4])
@pytest.mark.parametrize(("bits", "block_size"), [(2, 0), (2, 16), (4, 0), (4, 16), (4, 32), (8, 0), (8, 16), (8, 32)])
@pytest.mark.parametrize("activation", ["silu", "swiglu"])
def test_quantized_experts(agrees, rng, bits, block_size, accuracy_level, dtype, zeros, activation):
    """Blocks of 32 at 2 bits are left out: there onnxruntime rounds to tables."""
    fused = activation == "swiglu"
    inputs, *_ = quantized(rng, bits=bits, block_size=block_size, zeros=zeros, fused=1 + fused, bias=True, dtype=dtype)
    attributes = {**QUANTIZED, "activation_type": activation, "swiglu_fusion": int(fused), "expert_weight_bits": bits}
    attributes |= {"accuracy_level": accuracy_level, **({"block_size": block_size} if block_size else {})}
    constants = [index for index in CONSTANTS if index < len(inputs)]
    agrees("QMoE", inputs, attributes, terms=INNER, constants=constants)


@pytest.mark.parametrize("normalize", [0, 1])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_weights_for_mixing_that_are_not_the_routers(agrees, rng, k, normalize):
    inputs, *_ = quantized(rng, mixing=True)
    agrees("QMoE", inputs, {**QUANTIZED, "k": k, "normalize_routing_weights": normalize}, terms=INNER)


def test_shares_of_the_router_are_normalized_on_request_alone(rng):
    """onnxruntime's CPU provider does so always, unlike its other providers and its own MoE."""
    inputs, weights, biases = quantized(rng)
    attributes = {**QUANTIZED, "normalize_routing_weights": 0}
    (y,) = operators()["com.microsoft", "QMoE"](inputs, attributes, 1)
    assert distance(y, by_the_formula(inputs, weights, biases, attributes), HIDDEN) < 1


def test_layers_may_differ_in_width(rng):
    inputs, weights, biases = quantized(rng, bits=2)
    wider, wider_weights, _ = quantized(rng, bits=8)
    inputs[5:7], weights[1] = wider[5:7], wider_weights[1]
    attributes = {**QUANTIZED, "expert_weight_bits": 2, "fc2_expert_weight_bits": 8}
    (y,) = operators()["com.microsoft", "QMoE"](inputs, attributes, 1)
    assert distance(y, by_the_formula(inputs, weights, biases, attributes), HIDDEN) < 1


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"activation_type": "tanh"}, r"activation_type='tanh'.*known are swiglu"),
        ({"activation_type": "swiglu"}, r"swiglu without its second half.*feed FC3"),
        ({"use_sparse_mixer": 1}, r"use_sparse_mixer=1"),
    ],
)
def test_refuses_attributes(rng, attributes, message):
    with pytest.raises(OperatorError, match=message):
        operators()["com.microsoft", "MoE"](experts(rng), {"k": 1, **attributes}, 1)


def test_refuses_what_does_not_fit(rng):
    inputs = experts(rng)
    inputs[1] = inputs[1][:3]
    with pytest.raises(OperatorError, match=r"router_probs of shape \[3, 5\].*\[7, 'any'\]"):
        operators()["com.microsoft", "MoE"](inputs, {"k": 1}, 1)
    quantized_inputs, *_ = quantized(rng, block_size=16)
    with pytest.raises(OperatorError, match=r"scales of shape \[5, 64, 2\].*\[5, 64, 1\]"):
        operators()["com.microsoft", "QMoE"](quantized_inputs, {"k": 1, "block_size": 32}, 1)
    with pytest.raises(OperatorError, match="quant_type='fp8'"):
        operators()["com.microsoft", "QMoE"](quantized_inputs, {"k": 1, "quant_type": "fp8"}, 1)
    with pytest.raises(OperatorError, match="weights_prepacked=1"):
        operators()["com.microsoft", "QMoE"](quantized_inputs, {"k": 1, "weights_prepacked": 1}, 1)
