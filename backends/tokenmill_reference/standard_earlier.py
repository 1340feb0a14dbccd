"""Standard operators as earlier opset versions defined them, where `onnx.reference` knows only later ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Inputs = Sequence[Any]
Attributes = Mapping[str, Any]
Operator = Callable[[Inputs, Attributes, int], Sequence[Any]]


def _scatter(inputs: Inputs, attributes: Attributes, outputs: int) -> Sequence[Any]:
    """Scatter-9, the former name of ScatterElements."""
    data, indices, updates = inputs
    axis = attributes.get("axis", 0)
    places = list(np.indices(indices.shape, sparse=True))
    places[axis] = np.where(indices < 0, indices + data.shape[axis], indices)
    result = data.copy()
    result[tuple(places)] = updates
    return [result]


def _flattened(function: Callable[[Array], Array]) -> Operator:
    """Before opset 13, the softmax family saw its input as a matrix, split at `axis` (default 1)."""

    def operator(inputs: Inputs, attributes: Attributes, outputs: int) -> Sequence[Any]:
        (x,) = inputs
        axis = attributes.get("axis", 1)
        rows = math.prod(x.shape[: axis if axis >= 0 else axis + x.ndim])
        matrix = x.reshape(rows, x.size // max(rows, 1))
        return [function(matrix).astype(x.dtype).reshape(x.shape) if x.size else x]

    return operator


def _softmax(x: Array) -> Array:
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def _log_softmax(x: Array) -> Array:
    shifted = x - x.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _hardmax(x: Array) -> Array:
    return np.eye(x.shape[1], dtype=x.dtype)[x.argmax(axis=1)]


def _broadcasting(function: Callable[[Array, Array], Array]) -> Operator:
    """Before opset 7, B was broadcast only on request, with its extents aligned to A's from `axis` on."""

    def operator(inputs: Inputs, attributes: Attributes, outputs: int) -> Sequence[Any]:
        a, b = inputs
        axis = attributes.get("axis")
        if attributes.get("broadcast", 0) and axis is not None:
            start = axis if axis >= 0 else axis + a.ndim
            b = b.reshape(*b.shape, *(1,) * (a.ndim - start - b.ndim))
        return [function(a, b)]

    return operator


def _divide(a: Array, b: Array) -> Array:
    """Integers are divided towards zero."""
    if a.dtype.kind not in "iu":
        return (a / b).astype(a.dtype)
    quotient = a // b
    return (quotient + ((a % b != 0) & ((a < 0) != (b < 0)))).astype(a.dtype)


def _batch_normalization(inputs: Inputs, attributes: Attributes, outputs: int) -> Sequence[Any]:
    """BatchNormalization-7 and -9, as they are used for inference: from the stored mean and variance."""
    x, scale, bias, mean, variance = inputs
    shape = (-1, *(1,) * (x.ndim - 2))
    factor = scale / np.sqrt(variance + np.float32(attributes.get("epsilon", 1e-5)))
    return [((x - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape)).astype(x.dtype)]


def _dequantize(inputs: Inputs, attributes: Attributes, outputs: int) -> Sequence[Any]:
    """DequantizeLinear-10 and -13: (x - zero point) * scale, for the whole tensor or along an axis."""
    x, scale, *rest = inputs
    axis = attributes.get("axis", 1)
    shape = (-1, *(1,) * (x.ndim - 1 - axis % x.ndim)) if scale.size > 1 else ()
    centred = x.astype(np.int64)
    if rest and rest[0] is not None:
        centred = centred - rest[0].astype(np.int64).reshape(shape)
    return [centred.astype(scale.dtype) * scale.reshape(shape)]


def _upsample(inputs: Inputs, attributes: Attributes, outputs: int) -> Sequence[Any]:
    """Upsample-7 and -9, Resize-10: a pixel of the output looks at its position divided by the scale."""
    scales = attributes["scales"] if "scales" in attributes else inputs[1].tolist()
    result = inputs[0]
    for axis, scale in enumerate(scales):
        if scale != 1:
            result = _stretched(result, axis, scale, attributes.get("mode", "nearest"))
    return [result]


def _stretched(x: Array, axis: int, scale: float, mode: str) -> Array:
    last = x.shape[axis] - 1
    positions = np.arange(math.floor(x.shape[axis] * scale), dtype=np.float32) / np.float32(scale)
    if mode == "nearest":
        # A shrinking Resize-10 takes the next pixel, as onnxruntime does; the specification leaves it open.
        nearest = np.floor(positions) if scale > 1 else np.ceil(positions)
        return x.take(np.clip(nearest.astype(np.int64), 0, last), axis)
    below = np.clip(np.floor(positions).astype(np.int64), 0, last)
    above = np.minimum(below + 1, last)
    shares = (positions - below).astype(np.float32).reshape(-1, *(1,) * (x.ndim - 1 - axis))
    return (x.take(below, axis) * (1 - shares) + x.take(above, axis) * shares).astype(x.dtype)


_BROADCASTING: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": _divide, "Pow": np.power, "Equal": np.equal,
    "Greater": np.greater, "Less": np.less, "And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor,
}  # fmt: skip

#: Operator, first and last opset version, implementation.
EARLIER: tuple[tuple[str, int, int, Operator], ...] = (
    ("Scatter", 9, 10, _scatter),
    ("Softmax", 1, 12, _flattened(_softmax)),
    ("LogSoftmax", 1, 12, _flattened(_log_softmax)),
    ("Hardmax", 1, 12, _flattened(_hardmax)),
    ("BatchNormalization", 7, 13, _batch_normalization),
    ("DequantizeLinear", 10, 18, _dequantize),
    ("Upsample", 7, 9, _upsample),
    ("Resize", 10, 10, _upsample),
    *((name, 1, 6, _broadcasting(function)) for name, function in _BROADCASTING.items()),
)
