"""Layer and root-mean-square normalization, with and without the addition before them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenmill_reference.contrib.activation import sigmoid
from tokenmill_reference.contrib.convention import (
    Array,
    Attributes,
    Inputs,
    Operator,
    Outputs,
    fits,
    given,
    refuse,
    required,
    text,
    wide,
    wide_or,
)


def root_mean_square_scaled(
    x: Array, epsilon: float, axes: tuple[int, ...] = (-1,)
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """`x / sqrt(mean(x^2) + epsilon)`, and the factor (kept with extent 1)."""
    x = wide(x)
    inverse = 1 / np.sqrt(np.mean(x * x, axis=axes, keepdims=True) + epsilon)
    return x * inverse, inverse


def simplified_layer_normalization(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """RMS normalization over the axes from `axis` on, times scale, in the scale's type. Output 1 is the factor."""
    x, scale = required(inputs, 0, "X"), required(inputs, 1, "scale")
    axis = int(attributes.get("axis", -1)) % x.ndim
    normal, inverse = root_mean_square_scaled(x, float(attributes.get("epsilon", 1e-5)), tuple(range(axis, x.ndim)))
    return [(normal * wide(scale)).astype(scale.dtype), inverse.astype(_stash(x))][:outputs]


def layer_normalization(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """Normalization over the axes from `axis` on, times scale plus bias. Outputs: normalized, mean, 1 / deviation."""
    x, scale = required(inputs, 0, "X"), required(inputs, 1, "Scale")
    axes = tuple(range(int(attributes.get("axis", -1)) % x.ndim, x.ndim))
    mean = wide(x).mean(axis=axes, keepdims=True)
    normal, inverse = root_mean_square_scaled(wide(x) - mean, float(attributes.get("epsilon", 1e-5)), axes)
    y = normal * wide(scale) + wide_or(given(inputs, 2))
    return [y.astype(x.dtype), mean.astype(_stash(x)), inverse.astype(_stash(x))][:outputs]


def skip_simplified_layer_normalization(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """RMS normalization of `input + skip (+ bias)`, times gamma.

    Outputs: normalized, mean (not defined: zeros), factor, sum.
    """
    x, skip, gamma = (required(inputs, i, name) for i, name in enumerate(("input", "skip", "gamma")))
    _check_skip(x, skip, gamma=gamma, bias=given(inputs, 3))
    total = wide(x) + wide(skip) + wide_or(given(inputs, 3))
    normal, inverse = root_mean_square_scaled(total, float(attributes.get("epsilon", 1e-12)))
    mean = np.zeros_like(inverse)
    return _skip_outputs(normal * wide(gamma), mean, inverse, total, x, outputs)


def skip_layer_normalization(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """Layer normalization of `input + skip (+ bias)`, times gamma plus beta.

    Outputs: normalized, mean, 1 / deviation, sum.
    """
    x, skip, gamma = (required(inputs, i, name) for i, name in enumerate(("input", "skip", "gamma")))
    _check_skip(x, skip, gamma=gamma, beta=given(inputs, 3), bias=given(inputs, 4))
    total = wide(x) + wide(skip) + wide_or(given(inputs, 4))
    mean = total.mean(axis=-1, keepdims=True)
    normal, inverse = root_mean_square_scaled(total - mean, float(attributes.get("epsilon", 1e-12)))
    return _skip_outputs(normal * wide(gamma) + wide_or(given(inputs, 3)), mean, inverse, total, x, outputs)


def gated_rms_norm(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """RMS normalization over runs of the scale's length, times scale and an activation (silu, sigmoid) of the gate."""
    x, scale, gate = (required(inputs, i, name) for i, name in enumerate(("X", "scale", "gate")))
    activation = text(attributes, "activation", "silu")
    refuse(
        activation not in ("silu", "swish", "sigmoid"),
        f"activation={activation!r} of GatedRMSNorm",
        "silu, swish and sigmoid are defined",
    )
    fits(gate, "gate", *x.shape)
    refuse(
        scale.ndim != 1 or x.shape[-1] % scale.size,
        f"scale of shape {list(scale.shape)}",
        f"the {x.shape[-1]} features are no multiple of it",
    )
    runs = x.reshape(*x.shape[:-1], -1, scale.size)
    normal, _ = root_mean_square_scaled(runs, float(attributes.get("epsilon", 1e-5)))
    opening = sigmoid(wide(gate))
    if activation != "sigmoid":
        opening = opening * wide(gate)
    return [((normal * wide(scale)).reshape(x.shape) * opening).astype(x.dtype)]


def _check_skip(x: Array, skip: Array, **vectors: Array | None) -> None:
    """`skip` may leave out the batch, or have one for all."""
    if skip.shape not in (x.shape[1:], (1, *x.shape[1:])):
        fits(skip, "skip", *x.shape)
    for name, vector in vectors.items():
        fits(vector, name, x.shape[-1])


def _stash(x: Array) -> type[np.floating]:
    return np.float64 if x.dtype == np.float64 else np.float32


def _skip_outputs(y: Array, mean: Array, inverse: Array, total: Array, x: Array, outputs: int) -> Outputs:
    return [y.astype(x.dtype), mean.astype(np.float32), inverse.astype(np.float32), total.astype(x.dtype)][:outputs]


OPERATORS: dict[str, Operator] = {
    "SimplifiedLayerNormalization": simplified_layer_normalization,
    "SkipSimplifiedLayerNormalization": skip_simplified_layer_normalization,
    "SkipLayerNormalization": skip_layer_normalization,
    "GatedRMSNorm": gated_rms_norm,
}
