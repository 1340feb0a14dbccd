"""Standard operators that `onnx.reference` lacks, or computes in part."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Inputs = Sequence[Any]
Attributes = Mapping[str, Any]
Operator = Callable[[Inputs, Attributes, int], Sequence[Any]]


def _optional(inputs: Inputs, attributes: Attributes, outputs: int) -> Sequence[Any]:
    """An optional is its element, or None: `onnx.reference` wraps the element in a list of one."""
    return [inputs[0] if inputs else None]


def _identity(inputs: Inputs, attributes: Attributes, outputs: int) -> Sequence[Any]:
    """Any value, an absent optional included, which `onnx.reference` refuses to return."""
    return [inputs[0]]


def _matmul(inputs: Inputs, attributes: Attributes, outputs: int) -> Sequence[Any]:
    """numpy's product; of types with 16 bits in float32, rounded once: exact products, and BLAS instead of a loop."""
    a, b = inputs
    if a.dtype.itemsize > 2 or a.dtype.kind in "iub":
        return [np.matmul(a, b)]
    return [np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(a.dtype)]


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


def _conv_transpose(inputs: Inputs, attributes: Attributes, outputs: int) -> Sequence[Any]:
    """Each input pixel adds the kernel, times its value, to the output; groups see their own channels."""
    x, w, *rest = inputs
    extents, kernel, groups = x.shape[2:], w.shape[2:], attributes.get("group", 1)
    strides = attributes.get("strides") or [1] * len(kernel)
    dilations = attributes.get("dilations") or [1] * len(kernel)
    extra = attributes.get("output_padding") or [0] * len(kernel)
    full = [s * (n - 1) + d * (k - 1) + 1 for s, n, d, k in zip(strides, extents, dilations, kernel, strict=True)]
    begins, sizes = _transposed_crop(full, extra, extents, strides, attributes)
    space = [max(f + e, b + n) for f, e, b, n in zip(full, extra, begins, sizes, strict=True)]
    sums = np.zeros((x.shape[0], groups, w.shape[1], *space), np.float64 if x.dtype == np.float64 else np.float32)
    grouped = x.reshape(x.shape[0], groups, -1, *extents)
    weights = w.reshape(groups, -1, *w.shape[1:])
    for tap in np.ndindex(*kernel):
        window: tuple[Any, ...] = tuple(
            slice(t * d, t * d + s * (n - 1) + 1, s)
            for t, d, s, n in zip(tap, dilations, strides, extents, strict=True)
        )
        sums[(..., *window)] += np.einsum("bgc...,gcm->bgm...", grouped, weights[(..., *tap)])
    kept: tuple[Any, ...] = tuple(slice(b, b + n) for b, n in zip(begins, sizes, strict=True))
    cropped = sums[(..., *kept)]
    result = cropped.reshape(x.shape[0], groups * w.shape[1], *sizes)
    if rest and rest[0] is not None:
        result = result + rest[0].reshape(-1, *(1,) * len(kernel))
    return [result.astype(x.dtype)]


def _transposed_crop(
    full: list[int], extra: list[int], extents: Sequence[int], strides: list[int], attributes: Attributes
) -> tuple[list[int], list[int]]:
    """First kept pixel and number of kept pixels of each axis."""
    auto, rank = attributes.get("auto_pad", "NOTSET"), len(full)
    shape = attributes.get("output_shape")
    if shape is None and auto.startswith("SAME"):
        shape = [n * s for n, s in zip(extents, strides, strict=True)]
    if shape is None:
        pads = [0] * 2 * rank if auto == "VALID" else attributes.get("pads") or [0] * 2 * rank
        return pads[:rank], [f + e - pads[i] - pads[i + rank] for i, (f, e) in enumerate(zip(full, extra, strict=True))]
    sizes = list(shape)[-rank:]
    totals = [max(f + e - n, 0) for f, e, n in zip(full, extra, sizes, strict=True)]
    return [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in totals], sizes


_NEWEST = 1 << 30

#: Operator, first and last opset version, implementation.
MISSING: tuple[tuple[str, int, int, Operator], ...] = (
    ("Optional", 15, _NEWEST, _optional),
    ("Identity", 1, _NEWEST, _identity),
    ("MatMul", 1, _NEWEST, _matmul),
    ("Gelu", 20, _NEWEST, _gelu),
    ("Erf", 9, _NEWEST, _elementwise_erf),
    ("GroupNormalization", 18, _NEWEST, _group_normalization),
    ("ConvTranspose", 1, _NEWEST, _conv_transpose),
    ("GlobalLpPool", 1, _NEWEST, _global_lp_pool),
    ("MaxRoiPool", 1, _NEWEST, _max_roi_pool),
    ("Multinomial", 7, _NEWEST, _multinomial),
)
