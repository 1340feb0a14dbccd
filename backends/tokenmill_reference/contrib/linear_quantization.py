"""`QuantizeLinear` and `DequantizeLinear` of `com.microsoft`: per tensor or per axis, 16- and 4-bit codes included."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tokenmill_reference.contrib.convention import Array, Attributes, Inputs, Outputs, given, required


def quantize_linear(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """`saturate(round(x / scale) + zero point)`, ties to even, in the zero point's type (omitted: uint8)."""
    x, scale = required(inputs, 0, "x"), required(inputs, 1, "y_scale")
    zero = given(inputs, 2)
    dtype = np.dtype(np.uint8) if zero is None else zero.dtype
    offset = np.zeros_like(scale) if zero is None else zero
    # The quotient is rounded in x's own type before it is rounded to an integer.
    codes = np.rint(x / _along(scale, x, attributes)).astype(np.float64) + _along(offset, x, attributes).astype(
        np.float64
    )
    info = ml_dtypes.iinfo(dtype)
    return [np.clip(codes, int(info.min), int(info.max)).astype(np.int32).astype(dtype)]


def dequantize_linear(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """`(x - zero point) * scale`, in the scale's type."""
    x, scale = required(inputs, 0, "x"), required(inputs, 1, "x_scale")
    zero = given(inputs, 2)
    codes = x.astype(np.int64) - (0 if zero is None else _along(zero, x, attributes).astype(np.int64))
    return [(codes.astype(np.float32) * _along(scale, x, attributes).astype(np.float32)).astype(scale.dtype)]


def _along(parameter: Array, x: Array, attributes: Attributes) -> Array:
    if parameter.size == 1:
        return parameter.reshape(())
    axis = int(attributes.get("axis", 1)) % x.ndim
    return parameter.reshape(-1, *(1,) * (x.ndim - axis - 1))
