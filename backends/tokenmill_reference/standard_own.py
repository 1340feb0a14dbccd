"""Standard operators that `onnx.reference` lacks, or computes unlike the specification of their version."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen

Array = np.ndarray[Any, Any]
Inputs = Sequence[Any]
Attributes = Mapping[str, Any]
Operator = Callable[[Inputs, Attributes, int], Sequence[Any]]


@frozen(eq=False)
class _Entry:
    since: int
    until: int
    function: Operator


def own_operator(domain: str, operator: str, version: int) -> Operator | None:
    """The implementation for an opset version of the standard domain, when there is one here."""
    if domain != "":
        return None
    entries = _OPERATORS.get(operator, ())
    return next((entry.function for entry in entries if entry.since <= version <= entry.until), None)


def _optional(inputs: Inputs, attributes: Attributes, outputs: int) -> Sequence[Any]:
    """An optional is its element, or None: `onnx.reference` wraps the element in a list of one."""
    return [inputs[0] if inputs else None]


def _scatter(inputs: Inputs, attributes: Attributes, outputs: int) -> Sequence[Any]:
    """Scatter-9, the former name of ScatterElements."""
    data, indices, updates = inputs
    axis = attributes.get("axis", 0)
    result = data.copy()
    np.put_along_axis(result, np.where(indices < 0, indices + data.shape[axis], indices), updates, axis)
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


def _gelu(inputs: Inputs, attributes: Attributes, outputs: int) -> Sequence[Any]:
    """x * Phi(x), or its tanh approximation (Hendrycks and Gimpel, arXiv:1606.08415)."""
    (x,) = inputs
    wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    if attributes.get("approximate", "none") == "tanh":
        inner = np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))
    else:
        inner = _erf(wide / math.sqrt(2))
    return [(wide * (1 + inner) / 2).astype(x.dtype)]


def _erf(x: Array) -> Array:
    values = np.fromiter(map(math.erf, x.reshape(-1).tolist()), np.float64, x.size)
    return values.reshape(x.shape).astype(x.dtype)


def _elementwise_erf(inputs: Inputs, attributes: Attributes, outputs: int) -> Sequence[Any]:
    """Erf in the input's own type: `onnx.reference` computes double in float."""
    (x,) = inputs
    wide = x.astype(np.float64)
    return [_erf(wide).astype(x.dtype)]


def _group_normalization(inputs: Inputs, attributes: Attributes, outputs: int) -> Sequence[Any]:
    """GroupNormalization-18 scales by group, -21 by channel."""
    x, scale, bias = inputs
    groups, epsilon = attributes["num_groups"], attributes.get("epsilon", 1e-5)
    stash = np.float64 if x.dtype == np.float64 else np.float32
    grouped = x.astype(stash).reshape(x.shape[0], groups, -1)
    mean = grouped.mean(axis=2, keepdims=True)
    variance = ((grouped - mean) ** 2).mean(axis=2, keepdims=True)
    normal = ((grouped - mean) / np.sqrt(variance + stash(epsilon))).astype(x.dtype)
    if scale.size == groups and scale.size != x.shape[1]:
        return [(normal * scale.reshape(1, -1, 1) + bias.reshape(1, -1, 1)).reshape(x.shape)]
    shape = (1, x.shape[1], *(1,) * (x.ndim - 2))
    return [normal.reshape(x.shape) * scale.reshape(shape) + bias.reshape(shape)]


def _global_lp_pool(inputs: Inputs, attributes: Attributes, outputs: int) -> Sequence[Any]:
    """The p-norm over every axis behind the channels."""
    (x,) = inputs
    p = attributes.get("p", 2)
    axes = tuple(range(2, x.ndim))
    return [((np.abs(x) ** p).sum(axis=axes, keepdims=True) ** (1 / p)).astype(x.dtype)]


def _max_roi_pool(inputs: Inputs, attributes: Attributes, outputs: int) -> Sequence[Any]:
    """Maxima over a grid laid on each region (Girshick, arXiv:1504.08083); regions are `[batch, x1, y1, x2, y2]`."""
    x, regions = inputs
    height, width = attributes["pooled_shape"]
    corners = np.floor(regions[:, 1:] * attributes.get("spatial_scale", 1.0) + 0.5).astype(np.int64)
    result = np.zeros((len(regions), x.shape[1], height, width), x.dtype)
    for index, (left, top, right, bottom) in enumerate(corners.tolist()):
        image = x[int(regions[index, 0])]
        across, down = max(right - left + 1, 1) / width, max(bottom - top + 1, 1) / height
        for row in range(height):
            first, last = (
                _edge(row * down, top, x.shape[2], math.floor),
                _edge((row + 1) * down, top, x.shape[2], math.ceil),
            )
            for column in range(width):
                start = _edge(column * across, left, x.shape[3], math.floor)
                end = _edge((column + 1) * across, left, x.shape[3], math.ceil)
                if first < last and start < end:
                    result[index, :, row, column] = image[:, first:last, start:end].max(axis=(1, 2))
    return [result]


def _edge(distance: float, origin: int, extent: int, rounded: Callable[[float], int]) -> int:
    return min(max(rounded(distance) + origin, 0), extent)


def _multinomial(inputs: Inputs, attributes: Attributes, outputs: int) -> Sequence[Any]:
    """Class indices drawn from unnormalized log probabilities, by the Gumbel-max rule."""
    (x,) = inputs
    seed = attributes.get("seed")
    generator = np.random.default_rng(None if seed is None else int(np.float32(seed).view(np.uint32)))
    noise = generator.gumbel(size=(x.shape[0], attributes.get("sample_size", 1), x.shape[1]))
    drawn = (x[:, None, :].astype(np.float64) + noise).argmax(axis=2)
    return [drawn.astype(np.int64 if attributes.get("dtype", 6) == 7 else np.int32)]


_NEWEST = 1 << 30

_BROADCASTING: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": _divide, "Pow": np.power, "Equal": np.equal,
    "Greater": np.greater, "Less": np.less, "And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor,
}  # fmt: skip

_OPERATORS: dict[str, tuple[_Entry, ...]] = {
    "Optional": (_Entry(15, _NEWEST, _optional),),
    "Scatter": (_Entry(9, _NEWEST, _scatter),),
    "Softmax": (_Entry(1, 12, _flattened(_softmax)),),
    "LogSoftmax": (_Entry(1, 12, _flattened(_log_softmax)),),
    "Hardmax": (_Entry(1, 12, _flattened(_hardmax)),),
    "Gelu": (_Entry(20, _NEWEST, _gelu),),
    "Erf": (_Entry(9, _NEWEST, _elementwise_erf),),
    "GroupNormalization": (_Entry(18, _NEWEST, _group_normalization),),
    "GlobalLpPool": (_Entry(1, _NEWEST, _global_lp_pool),),
    "MaxRoiPool": (_Entry(1, _NEWEST, _max_roi_pool),),
    "Multinomial": (_Entry(7, _NEWEST, _multinomial),),
    **{name: (_Entry(1, 6, _broadcasting(function)),) for name, function in _BROADCASTING.items()},
}
