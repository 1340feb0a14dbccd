"""Activations, with the bias or the gate that some of them take along."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill_reference.contrib.convention import (
    Array,
    Attributes,
    Inputs,
    Operator,
    Outputs,
    fits,
    given,
    required,
    wide,
    wide_or,
)

Wide = npt.NDArray[np.float64]

_erf = np.frompyfunc(math.erf, 1, 1)


def sigmoid(x: Wide) -> Wide:
    # tanh does not overflow where exp would.
    return 0.5 * (1 + np.tanh(0.5 * x))


def silu(x: Wide, alpha: float = 1.0) -> Wide:
    return x * sigmoid(alpha * x)


def gelu(x: Wide) -> Wide:
    """With the exact normal distribution: `x / 2 * (1 + erf(x / sqrt(2)))`."""
    return 0.5 * x * (1 + np.asarray(_erf(x / math.sqrt(2)), np.float64))


def gelu_tanh(x: Wide) -> Wide:
    """With the usual approximation of the normal distribution by a tanh."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def swiglu(
    gate: Wide,
    up: Wide,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    limit: float = math.inf,
    limit_after: bool = False,
    opened_as: np.dtype[Any] | None = None,
) -> Wide:
    """`G sigmoid(alpha G) (L + beta)` with the gate clamped from above and the other half on both sides.

    :param limit_after: clamp the activated gate in place of the gate.
    :param opened_as: type that the activated gate is rounded to on the way.
    """
    if limit_after:
        opened = np.minimum(silu(gate, alpha), limit)
    else:
        opened = silu(np.minimum(gate, limit), alpha)
    if opened_as is not None:
        opened = wide(opened.astype(opened_as))
    return opened * (np.clip(up, -limit, limit) + beta)


def _gelu(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    x, bias = required(inputs, 0, "X"), given(inputs, 1)
    fits(bias, "bias", x.shape[-1] if x.ndim else None)
    return [gelu(wide(x) + wide_or(bias)).astype(x.dtype)]


def _fast_gelu(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    x, bias = required(inputs, 0, "X"), given(inputs, 1)
    fits(bias, "bias", x.shape[-1] if x.ndim else None)
    return [gelu_tanh(wide(x) + wide_or(bias)).astype(x.dtype)]


def _quick_gelu(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    x = required(inputs, 0, "X")
    return [silu(wide(x), float(attributes.get("alpha", 1.702))).astype(x.dtype)]


def _scaled_silu(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """SiLU of `scale * x`; the scaled value and the sigmoid are rounded to x's type on the way, as defined."""
    x, scale = required(inputs, 0, "X"), given(inputs, 1)
    factor = wide_or(scale, float(attributes.get("alpha", 1.0))).reshape(())
    scaled = (factor * wide(x)).astype(x.dtype)
    opening = sigmoid(wide(scaled)).astype(x.dtype)
    return [(wide(scaled) * wide(opening)).astype(x.dtype)]


def _swiglu(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """Halves as two inputs, or concatenated in one; a limit of zero or less clamps nothing."""
    gate, up = required(inputs, 0, "gate"), given(inputs, 1)
    halves: list[Array] = list(np.split(gate, 2, axis=-1)) if up is None else [gate, up]
    limit = float(attributes.get("limit", 0.0))
    fits(halves[1], "up", *halves[0].shape)
    y = swiglu(
        wide(halves[0]),
        wide(halves[1]),
        alpha=float(attributes.get("activation_alpha", 1.0)),
        beta=float(attributes.get("activation_beta", 0.0)),
        limit=limit if limit > 0 else math.inf,
        opened_as=gate.dtype if attributes.get("round_activation", 0) else None,
    )
    return [y.astype(gate.dtype)]


def _bias_add(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    x, bias, skip = (required(inputs, i, name) for i, name in enumerate(("X", "bias", "skip")))
    fits(bias, "bias", x.shape[-1])
    fits(skip, "skip", *x.shape)
    return [(wide(x) + wide(bias) + wide(skip)).astype(x.dtype)]


def _gated_add(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """`x + y * gate`, the product rounded to the type; the gate itself, or `sigmoid(gate @ weight)`, rounded at each
    step.
    """
    x, y, gate = (required(inputs, i, name) for i, name in enumerate(("X", "Y", "gate")))
    weight = given(inputs, 3)
    fits(y, "Y", *x.shape)
    fits(gate, "gate", *x.shape[:-1], 1 if weight is None else weight.shape[0])
    if weight is not None:
        projected = (wide(gate) @ wide(weight)).astype(x.dtype)
        gate = sigmoid(wide(projected)).astype(x.dtype)
    product = (wide(y) * wide(gate)).astype(x.dtype)
    return [(wide(x) + wide(product)).astype(x.dtype)]


OPERATORS: dict[str, Operator] = {
    "Gelu": _gelu,
    "BiasGelu": _gelu,
    "FastGelu": _fast_gelu,
    "QuickGelu": _quick_gelu,
    "ScaledSiLU": _scaled_silu,
    "SwiGLU": _swiglu,
    "BiasAdd": _bias_add,
    "GatedAdd": _gated_add,
}
