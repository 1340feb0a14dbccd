"""Attention with heads apart: the standard operator, and onnxruntime's multi-head attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
from attrs import frozen
from tokenmill.contracts.answers import Declined

from tokenmill_cpu.frame import Frame
from tokenmill_cpu.kernels.attention import FEW, SIDE, attend_few, attend_many, few_bytes, many_bytes
from tokenmill_cpu.operators.floats import FLOAT32, narrowed, widened
from tokenmill_cpu.operators.operator import Array, Node, Operator, contiguous, implements

FLOAT16 = np.dtype(np.float16)

#: Address, and bytes from batch to batch, head to head and row to row.
Place = tuple[int, int, int, int]


def place(frame: Frame, array: Array) -> Place:
    """Of `[batch, heads, rows, items]` whose items lie side by side. The frame holds it."""
    batch, head, row = array.strides[:3]
    return frame.hold(array), batch, head, row


def flat_place(frame: Frame, array: Array, heads: int) -> Place:
    """Of float32 `[batch, rows, heads * items]` in C order. The frame holds it."""
    _, rows, features = array.shape
    return frame.hold(array), 4 * rows * features, 4 * (features // heads), 4 * features


NOWHERE: Place = (0, 0, 0, 0)


@frozen(eq=False)
class Extent:
    """Which keys the rows of a step see.

    :param numbers: int64 `[3, batch]`: how many keys there are, how many rows, and the position of the first row.
    :param most: the largest number of keys.
    """

    numbers: Array
    most: int


class Attend:
    """The kernels, with what does not change between runs."""

    def __init__(self, node: Node, *, causal: bool, window: int = -1, softcap: float = 0.0) -> None:
        for kernel in (attend_few, attend_many):
            node.address_of(kernel)
        self._fixed = (int(causal), window)
        self._scale = float(node.attributes.get("scale") or 0.0)
        self._softcap = softcap

    def __call__(
        self,
        frame: Frame,
        query: Place,
        keys: Place,
        values: Place,
        out: Place,
        sizes: tuple[int, int, int, int, int, int, int],
        extent: Extent,
        bias: Place = NOWHERE,
        sink: int = 0,
    ) -> None:
        """:param query: float32 `[batch, heads, rows, width]`; `out` likewise.
        :param keys: and values: `[batch, key heads, ..., items]`, both float32 or both float16, items side by side.
        :param sizes: batch, query heads, query heads to a key head, rows, items of a key and of a value, whether keys and
            values are float16.
        :param bias: float32 `[batch, heads, rows, keys]`.
        :param sink: address of float32 `[heads]`, or 0.
        """
        batch, heads, group, rows, width, value_width, _ = sizes
        most = extent.most
        if rows <= FEW:
            kernel, pieces = attend_few, batch * heads
            nbytes = few_bytes(group * rows, most, width, value_width)
        else:
            kernel, pieces = attend_many, batch * (heads // group) * -(-group * rows // SIDE)
            nbytes = many_bytes(most, width, value_width)
        parts = frame.parts(batch * heads * rows * most * width, pieces)
        lengths = frame.hold(extent.numbers)
        frame.launch(
            kernel, parts, *query, *keys, *values, *out, *bias, *sizes, lengths, lengths + 8 * batch,
            lengths + 16 * batch, *self._fixed, sink, frame.scratch("attention", parts * nbytes), nbytes,
            self._scale or 1 / sqrt(width), self._softcap,
        )  # fmt: skip


def split_heads(x: Array, heads: int) -> Array:
    """`[batch, rows, heads * D]` as `[batch, heads, rows, D]`, without a copy."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def as_cache(array: Array) -> Array | None:
    """Keys or values as the kernels take them: float16 stays."""
    given = array if array.dtype == FLOAT16 else widened(array) if array.dtype != FLOAT32 else array
    if given is None or given.strides[-1] == given.itemsize:
        return given
    return np.ascontiguousarray(given)


def present(frame: Frame, past: Array | None, new: Array) -> Array:
    """The past, and the new rows behind it: in its own storage where that is bound.

    :param past: and new: `[batch, heads, rows, D]`.
    """
    if past is None:
        return new
    binding, length = frame.bound.get(id(past)), past.shape[2]
    if binding is None or binding.axis != 2:
        return np.concatenate((past, new), axis=2)
    if new.shape != (*past.shape[:2], new.shape[2], past.shape[3]):
        raise ValueError(f"{list(new.shape)} does not continue {list(past.shape)} along axis 2")
    total = length + new.shape[2]
    if total > binding.capacity:
        raise ValueError(f"{total} entries are more than the {binding.capacity} that its storage holds")
    view = binding.view(total)
    view[:, :, length:] = new
    return view


def bias_of(mask: Array, shape: tuple[int, int, int, int]) -> Array | None:
    """A mask as what it adds to the scores `[batch, heads, rows, keys]`; None when it does not fit them.

    One that ends early hides the keys behind it.
    """
    wide = np.where(mask, np.float32(0), np.float32(-np.inf)) if mask.dtype == np.bool_ else widened(mask)
    if wide is None or not wide.ndim or wide.ndim > 4:
        return None
    missing = shape[3] - wide.shape[-1]
    if missing > 0 and wide.shape[-1] > 0:
        wide = np.pad(wide, [(0, 0)] * (wide.ndim - 1) + [(0, missing)], constant_values=-np.inf)
    if np.broadcast_shapes(wide.shape, shape) != shape:
        return None
    return np.broadcast_to(contiguous(wide), shape)


class Attention(Operator):
    """The standard operator, of opset 23 and later."""

    appends = {4: 1, 5: 2}  # noqa: RUF012

    def __init__(self, node: Node) -> None:
        attributes = node.attributes
        self._causal = bool(attributes.get("is_causal", 0))
        self._attend = Attend(node, causal=self._causal, softcap=float(attributes.get("softcap", 0.0)))
        self._heads, self._key_heads = int(attributes.get("q_num_heads", 0)), int(attributes.get("kv_num_heads", 0))

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        query, key, value, mask, past_key, past_value, counts = (*inputs, *(None,) * 7)[:7]
        x, flat = widened(query), query.ndim == 3
        if (
            x is None
            or key.ndim != query.ndim
            or value.ndim != query.ndim
            or (past_key is None) != (past_value is None)
        ):
            return NotImplemented
        if flat:
            if not self._heads or not self._key_heads or x.shape[2] % self._heads or key.shape[2] % self._key_heads:
                return NotImplemented
            x, key, value = (
                split_heads(a, n) for a, n in ((x, self._heads), (key, self._key_heads), (value, self._key_heads))
            )
        keys, values = present(frame, past_key, key), present(frame, past_value, value)
        batch, heads, rows, width = x.shape
        total = keys.shape[2]
        seen_keys, seen_values = as_cache(keys), as_cache(values)
        if seen_keys is None or seen_values is None or seen_keys.dtype != seen_values.dtype:
            return NotImplemented
        fits = keys.shape == (batch, keys.shape[1], total, width) and values.shape[:3] == keys.shape[:3]
        if not fits or not x.size or not values.size or heads % keys.shape[1]:
            return NotImplemented
        geometry = np.empty((3, batch), np.int64)
        geometry[0], geometry[1], geometry[2] = total, rows, total - key.shape[2]
        if counts is not None:
            geometry[0], geometry[2] = counts.reshape(-1), counts.reshape(-1) - rows
            if past_key is not None or counts.size != batch or geometry[0].min() < 0 or geometry[0].max() > total:
                return NotImplemented
        bias = None if mask is None else bias_of(mask, (batch, heads, rows, total))
        if mask is not None and bias is None:
            return NotImplemented
        out = np.empty(
            (batch, rows, heads, values.shape[3]) if flat else (batch, heads, rows, values.shape[3]), FLOAT32
        )
        self._attend(
            frame, place(frame, x), place(frame, seen_keys), place(frame, seen_values),
            place(frame, out.swapaxes(1, 2) if flat else out),
            (batch, heads, heads // keys.shape[1], rows, width, values.shape[3], int(seen_keys.dtype == FLOAT16)),
            Extent(geometry, int(geometry[0].max())), NOWHERE if bias is None else place(frame, bias),
        )  # fmt: skip
        return narrowed(out.reshape(batch, rows, -1) if flat else out, query.dtype), keys, values


@implements("", "Attention", since=23)
def _attention(node: Node) -> Operator | Declined:
    if node.wants(3):
        return Declined("its scores are wanted")
    if any(node.attributes.get(name, -1) != -1 for name in ("left_window_size", "right_window_size")):
        return Declined("it sees a window")
    return Attention(node)


class MultiHeadAttention(Operator):
    """onnxruntime's operator, without the lengths and beams of a shared buffer."""

    appends = {6: 1, 7: 2}  # noqa: RUF012

    def __init__(self, node: Node) -> None:
        attributes = node.attributes
        self._heads = int(attributes["num_heads"])
        self._causal = bool(attributes.get("unidirectional", 0))
        self._hidden = np.float32(attributes.get("mask_filter_value", -10000.0))
        self._attend = Attend(node, causal=self._causal)

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        query, key, value, bias, mask, added, past_key, past_value = (*inputs, *(None,) * 8)[:8]
        if query.ndim != 3 or key is None or value is None or key.ndim != 3 or value.ndim != 3 or bias is not None:
            return NotImplemented
        x, heads = widened(query), self._heads
        if x is None or any(a.shape[2] % heads for a in (query, key, value)):
            return NotImplemented
        x, key, value = (split_heads(a, heads) for a in (x, key, value))
        if (past_key is None) != (past_value is None):
            return NotImplemented
        batch, _, rows, width = x.shape
        if key.shape[:2] != (batch, heads) or key.shape[3] != width or value.shape[:3] != key.shape[:3] or not x.size:
            return NotImplemented
        keys, values = present(frame, past_key, key), present(frame, past_value, value)
        seen_keys, seen_values = as_cache(keys), as_cache(values)
        if seen_keys is None or seen_values is None or seen_keys.dtype != seen_values.dtype or not values.size:
            return NotImplemented
        total = keys.shape[2]
        geometry = np.empty((3, batch), np.int64)
        geometry[0], geometry[1], geometry[2] = total, rows, total - rows
        shape = (batch, heads, rows, total)
        masks = [None if mask is None else self._padding(mask, shape), None if added is None else bias_of(added, shape)]
        if any(given is not None and made is None for given, made in zip((mask, added), masks, strict=True)):
            return NotImplemented
        parts = [part for part in masks if part is not None]
        bias = None if not parts else parts[0] if len(parts) == 1 else parts[0] + parts[1]
        out = np.empty((batch, rows, heads, value.shape[3]), FLOAT32)
        self._attend(
            frame, place(frame, x), place(frame, seen_keys), place(frame, seen_values),
            flat_place(frame, out.reshape(batch, rows, -1), heads),
            (batch, heads, 1, rows, width, value.shape[3], int(seen_keys.dtype == FLOAT16)), Extent(geometry, total),
            NOWHERE if bias is None else place(frame, bias),
        )  # fmt: skip
        return narrowed(out.reshape(batch, rows, -1), query.dtype), keys, values

    def _padding(self, mask: Array, shape: tuple[int, int, int, int]) -> Array | None:
        """A mask of the keys, `[batch, keys]` or `[batch, rows, keys]`, of 1 where a key is seen."""
        batch, _, rows, total = shape
        if mask.shape == (batch, total):
            seen = mask[:, np.newaxis, np.newaxis]
        elif mask.shape == (batch, rows, total):
            seen = mask[:, np.newaxis]
        else:
            return None
        return np.broadcast_to(np.where(seen > 0, np.float32(0), self._hidden), shape)


@implements("com.microsoft", "MultiHeadAttention")
def _multi_head_attention(node: Node) -> Operator | Declined:
    if node.wants(3):
        return Declined("its probabilities are wanted")
    if node.has_input(8) or node.has_input(9):
        return Declined("its cache is a shared buffer")
    return MultiHeadAttention(node)
