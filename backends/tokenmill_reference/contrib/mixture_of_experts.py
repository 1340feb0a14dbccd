"""`MoE` and `QMoE`: each token goes through the feed-forward networks of its k best experts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from attrs import frozen

from tokenmill_reference.contrib.activation import gelu_tanh, silu, swiglu
from tokenmill_reference.contrib.blocks import per_element, rounded_to_int8, unpack_bitstream
from tokenmill_reference.contrib.convention import (
    Array,
    Attributes,
    Inputs,
    Outputs,
    fits,
    given,
    refuse,
    required,
    text,
    wide,
)
from tokenmill_reference.contrib.scaled_dot_product import softmax


@frozen(eq=False)
class Layer:
    """One linear layer of all experts.

    :param matrix: gives `[out, in]` of one expert.
    :param bias: `[experts, out]`.
    :param rounded_by: features per block in which activations are rounded to int8; 0 leaves them.
    """

    matrix: Callable[[int], Array]
    bias: Array | None
    rounded_by: int = 0

    def __call__(self, values: Array, expert: int) -> Array:
        if self.rounded_by:
            values = wide(rounded_to_int8(values.astype(np.float32), self.rounded_by))
        return values @ self.matrix(expert).T + (0.0 if self.bias is None else wide(self.bias[expert]))


def moe(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """Inputs: x `[..., E]`, router logits `[tokens, experts]`, then weights `[experts, out, in]` and bias `[experts,
    out]` of FC1 (up, or gate and up fused), FC2 (down), FC3 (up beside a gate in FC1).
    """
    layers = []
    for part in range(3):
        stored, bias = given(inputs, 2 + 2 * part), given(inputs, 3 + 2 * part)
        layers.append(None if stored is None else Layer(_plain(stored), bias))
    return _mixed(inputs, attributes, layers, None)


def qmoe(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """`MoE` with integer weights: codes `[experts, out, in * bits / 8] uint8`, scales `[experts, out]` or, with
    `block_size`, `[experts, out, in / block_size]`, zero points packed likewise (omitted: the middle of the range).
    Inputs 2 to 10 are weights, scales and bias of FC1, FC2, FC3; 11 to 13 zero points; 14 the weights for mixing when
    they are not the router's.

    Activations meet 8-bit blocks, and with `accuracy_level` 4 also 4-bit blocks, as int8: the operator is documented, and
    models are measured, with that rounding.
    """
    kind = text(attributes, "quant_type", "int")
    refuse(kind != "int", f"quant_type={kind!r} of QMoE", "only integer weights are defined here", "export with 'int'")
    refuse(
        attributes.get("weights_prepacked", -1) == 1,
        "QMoE with weights_prepacked=1",
        "the weight is in the private layout of one device",
        "export with weights_prepacked=0",
    )
    block_size = int(attributes.get("block_size", 0))
    layers: list[Layer | None] = []
    for part in range(3):
        codes, scales = given(inputs, 2 + 3 * part), given(inputs, 3 + 3 * part)
        bits = int(attributes.get(f"fc{part + 1}_expert_weight_bits", attributes.get("expert_weight_bits", 4)))
        rounds = bits == 8 or (bits == 4 and int(attributes.get("accuracy_level", 0)) == 4)
        if codes is None:
            layers.append(None)
            continue
        matrix = _dequantized(codes, scales, given(inputs, 11 + part), bits, block_size)
        layers.append(Layer(matrix, given(inputs, 4 + 3 * part), block_size if rounds else 0))
    return _mixed(inputs, attributes, layers, given(inputs, 14))


def _plain(matrix: Array) -> Callable[[int], Array]:
    return lambda expert: wide(matrix[expert])


def _dequantized(
    codes: Array, scales: Array | None, zero_points: Array | None, bits: int, block_size: int
) -> Callable[[int], Array]:
    refuse(scales is None, "QMoE without scales", "integer weights have no meaning without", "feed fc*_scales")
    assert scales is not None
    extent = codes.shape[-1] * 8 // bits
    fits(scales, "scales", *codes.shape[:2], *((-(-extent // block_size),) if block_size else ()))

    def spread(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return per_element(values, block_size or extent, extent) if values.ndim == 2 else values[:, np.newaxis]

    def matrix(expert: int) -> Array:
        scale = scales[expert].astype(np.float32)
        offset = np.float32(2 ** (bits - 1)) * np.ones_like(scale)
        if zero_points is not None:
            offset = unpack_bitstream(zero_points[expert], bits, scale.shape[-1]).astype(np.float32)
        plain = unpack_bitstream(codes[expert], bits, extent).astype(np.float32)
        return wide((plain - spread(offset)) * spread(scale))

    return matrix


def _mixed(
    inputs: Inputs,
    attributes: Attributes,
    layers: Sequence[Layer | None],
    mixing: Array | None,
) -> Outputs:
    x, router = required(inputs, 0, "input"), required(inputs, 1, "router_probs")
    first, second, third = layers
    refuse(first is None or second is None, "a mixture of experts without FC1 or FC2", "both are required")
    assert first is not None
    assert second is not None
    tokens = wide(x).reshape(-1, x.shape[-1])
    fits(router, "router_probs", len(tokens), None)
    fits(mixing, "router_weights", *router.shape)
    chosen, shares = _routed(wide(router), attributes, mixing)
    y = np.zeros((len(tokens), x.shape[-1]))
    for expert in np.unique(chosen):
        rows, place = np.nonzero(chosen == expert)
        inner = first(tokens[rows], expert)
        up = None if third is None else third(tokens[rows], expert)
        outer = second(_activated(inner, up, attributes), expert)
        y[rows] += shares[rows, place][:, np.newaxis] * outer
    return [y.reshape(x.shape).astype(x.dtype)]


def _routed(
    logits: npt.NDArray[np.float64], attributes: Attributes, mixing: Array | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Experts `[tokens, k]` by falling logit, the lower index among equals, and their shares."""
    refuse(
        attributes.get("use_sparse_mixer", 0),
        "a mixture of experts with use_sparse_mixer=1",
        "the operator's documentation does not define its routing",
        "export with plain top-k routing",
    )
    k = int(attributes.get("k", 1))
    chosen = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    weights = softmax(logits) if mixing is None else wide(mixing)
    shares = np.take_along_axis(weights, chosen, axis=-1)
    if attributes.get("normalize_routing_weights", 0):
        shares = shares / shares.sum(axis=-1, keepdims=True)
    return chosen, shares


def _activated(inner: Array, up: Array | None, attributes: Attributes) -> Array:
    """FC1's result, activated; a gated activation takes its other half from FC1's or from FC3."""
    name = text(attributes, "activation_type", "relu")
    if name in ("swiglu", "geglu"):
        fusion = int(attributes.get("swiglu_fusion", 0))
        if fusion == 1:
            gate, up = inner[:, 0::2], inner[:, 1::2]
        elif fusion == 2:
            gate, up = np.split(inner, 2, axis=-1)
        else:
            gate = inner
        refuse(up is None, f"{name} without its second half", "swiglu_fusion=0 takes it from FC3", "feed FC3's weights")
        assert up is not None
        if name == "geglu":
            return gelu_tanh(gate) * up
        return swiglu(
            gate,
            up,
            alpha=float(attributes.get("activation_alpha", 1.0)),
            beta=float(attributes.get("activation_beta", 0.0)),
            limit=float(attributes.get("swiglu_limit", math.inf)),
            limit_after=bool(attributes.get("swiglu_limit_after_activation", 0)),
        )
    single = {
        "relu": lambda: np.maximum(inner, 0),
        "relu2": lambda: np.square(np.maximum(inner, 0)),
        # onnxruntime's experts take the tanh form under this name, unlike its Gelu operator.
        "gelu": lambda: gelu_tanh(inner),
        "silu": lambda: silu(inner),
        "identity": lambda: inner,
    }
    refuse(name not in single, f"activation_type={name!r}", f"known are swiglu, geglu, {', '.join(single)}")
    return single[name]() if up is None else single[name]() * up
