"""Matrix products with what exporters fold into them: transposes, a factor, an activation, quantized operands."""

from __future__ import annotations

import numpy as np

from tokenmill_reference.contrib.activation import sigmoid
from tokenmill_reference.contrib.convention import (
    Array,
    Attributes,
    Inputs,
    Operator,
    Outputs,
    given,
    refuse,
    required,
    text,
    wide,
    wide_or,
)


def _arranged(x: Array, swap: object, batch: object) -> Array:
    """`batch` moves the first axis behind the other leading ones; `swap` exchanges the last two."""
    if x.ndim < 2:
        return x
    if batch:
        x = np.moveaxis(x, 0, -2)
    return x.swapaxes(-1, -2) if swap else x


def fused_matmul(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """`alpha * A @ B`, each operand transposed on its batch axes or its last two as attributes say."""
    a, b = required(inputs, 0, "A"), required(inputs, 1, "B")
    left = _arranged(a, attributes.get("transA", 0), attributes.get("transBatchA", 0))
    right = _arranged(b, attributes.get("transB", 0), attributes.get("transBatchB", 0))
    return [np.asarray(float(attributes.get("alpha", 1.0)) * (wide(left) @ wide(right))).astype(a.dtype)]


def fused_gemm(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """`activation(alpha * A @ B + beta * C)`."""
    a, b = required(inputs, 0, "A"), required(inputs, 1, "B")
    left, right = (_arranged(x, attributes.get(f"trans{name}", 0), 0) for x, name in ((a, "A"), (b, "B")))
    y = float(attributes.get("alpha", 1.0)) * (wide(left) @ wide(right))
    y = y + float(attributes.get("beta", 1.0)) * wide_or(given(inputs, 2))
    name = text(attributes, "activation", "")
    slope = float(attributes.get("activation_alpha", 0.01))
    activations = {
        "": lambda: y,
        "Relu": lambda: np.maximum(y, 0),
        "LeakyRelu": lambda: np.where(y < 0, slope * y, y),
        "Sigmoid": lambda: sigmoid(y),
        "Tanh": lambda: np.tanh(y),
    }
    refuse(
        name not in activations,
        f"activation={name!r} of FusedGemm",
        f"known are {', '.join(filter(None, activations))}",
    )
    return [activations[name]().astype(a.dtype)]


def matmul_integer_to_float(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """`((A - a_zero) @ (B - b_zero)) * a_scale * b_scale + bias`; parameters of B may be one per column."""
    a, b, a_scale, b_scale = (required(inputs, i, name) for i, name in enumerate(("A", "B", "a_scale", "b_scale")))
    product = (wide(a) - wide_or(given(inputs, 4))) @ (wide(b) - wide_or(given(inputs, 5)))
    y = product * wide(a_scale) * wide(b_scale) + wide_or(given(inputs, 6))
    return [y.astype(a_scale.dtype)]


def dynamic_quantize_matmul(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """Rounds A to uint8 with one scale for all of it, as `DynamicQuantizeLinear` does, then multiplies exactly."""
    a, b, b_scale = (required(inputs, i, name) for i, name in enumerate(("A", "B", "b_scale")))
    # In float32 and not wider: another rounding of the scale moves codes.
    low, high = np.minimum(a.min(initial=0), np.float32(0)), np.maximum(a.max(initial=0), np.float32(0))
    scale = np.float32(high - low) / np.float32(255) if high > low else np.float32(1)
    zero = np.float32(np.clip(np.rint(-low / scale), 0, 255))
    codes = np.clip(np.rint(a / scale) + zero, 0, 255)
    product = (wide(codes) - float(zero)) @ (wide(b) - wide_or(given(inputs, 3)))
    y = product * float(scale) * wide(b_scale) + wide_or(given(inputs, 4))
    return [y.astype(a.dtype)]


OPERATORS: dict[str, Operator] = {
    "FusedMatMul": fused_matmul,
    "TransposeMatMul": fused_matmul,
    "FusedGemm": fused_gemm,
    "MatMulIntegerToFloat": matmul_integer_to_float,
    "DynamicQuantizeMatMul": dynamic_quantize_matmul,
}
