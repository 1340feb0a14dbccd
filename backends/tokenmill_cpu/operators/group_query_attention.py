"""onnxruntime's grouped-query attention, which turns, appends and attends in one node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import frozen
from tokenmill.contracts.answers import Declined

from tokenmill_cpu.frame import Frame, address_of
from tokenmill_cpu.kernels.appending import append
from tokenmill_cpu.kernels.rotary import FROM_EACH, FROM_FIRST, FROM_PLACE
from tokenmill_cpu.operators.attention import FLOAT16, NOWHERE, Attend, bias_of, place, split_heads
from tokenmill_cpu.operators.floats import FLOAT32, narrowed, widened
from tokenmill_cpu.operators.operator import Array, Node, Operator, contiguous, implements

(
    QUERY, KEY, VALUE, PAST_KEY, PAST_VALUE, LENGTHS, TOTAL, COSINE, SINE, POSITIONS, BIAS, SINK, KEY_SCALE, VALUE_SCALE,
    QUERY_NORM, KEY_NORM, NEW,
) = range(17)  # fmt: skip


class GroupQueryAttention(Operator):
    """Of each sequence T tokens are held after the step, `seqlens_k + 1`, and Q of them are new."""

    appends = {PAST_KEY: 1, PAST_VALUE: 2}  # noqa: RUF012

    def __init__(self, node: Node) -> None:
        attributes = node.attributes
        self._heads, self._key_heads = int(attributes["num_heads"]), int(attributes["kv_num_heads"])
        self._turns, self._interleaved = (
            bool(attributes.get("do_rotary", 0)),
            int(attributes.get("rotary_interleaved", 0)),
        )
        self._attend = Attend(
            node,
            causal=bool(attributes.get("causal", 1)),
            window=int(attributes.get("local_window_size", -1)),
            softcap=float(attributes.get("softcap", 0.0)),
        )
        node.address_of(append)
        self._no_sink = np.zeros(self._heads, np.float32) if attributes.get("smooth_softmax", -1) == 1 else None
        tables = [node.constant(position) for position in (COSINE, SINE)] if self._turns else [None, None]
        self._tables = [None if table is None else widened(table) for table in tables]
        self.packs = frozenset(
            position for position, table in zip((COSINE, SINE), self._tables, strict=True) if table is not None
        )
        self.weight_bytes = sum(table.nbytes for table in self._tables if table is not None)

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        given = (*inputs, *(None,) * 17)[:17]
        heads, key_heads = self._heads, self._key_heads
        query, key, value = self._projections(given)
        past_key, past_value, dtype = given[PAST_KEY], given[PAST_VALUE], given[QUERY].dtype
        if query is None or key is None or value is None or (past_key is None) != (past_value is None):
            return NotImplemented
        batch, _, rows, width = query.shape
        geometry = np.empty((3, batch), np.int64)
        held, new, first = geometry
        np.add(given[LENGTHS].reshape(-1), 1, out=held)
        total = int(given[TOTAL].reshape(-1)[0])
        if given[NEW] is None:
            np.minimum(held, rows, out=new)
        else:
            new[:] = given[NEW].reshape(-1)
        np.subtract(held, new, out=first)
        length = 0 if past_key is None else past_key.shape[2]
        extent = max(total, length)
        if held.min() < 0 or held.max() > extent or new.min() < 0 or new.max() > rows or first.min() < 0:
            return NotImplemented
        if first.max() > length or not query.size:
            return NotImplemented
        bias = None if given[BIAS] is None else bias_of(given[BIAS], (batch, heads, rows, total))
        sink = self._no_sink if given[SINK] is None else widened(given[SINK])
        if given[BIAS] is not None and bias is None:
            return NotImplemented

        keys = self._present(frame, past_key, (batch, key_heads, extent, width), dtype, first)
        values = self._present(frame, past_value, (batch, key_heads, extent, value.shape[3]), dtype, first)
        if keys is None or values is None or keys.dtype != values.dtype:
            return NotImplemented
        rotation = self._rotation(given, rows, total, width)
        if rotation is None:
            return NotImplemented
        at = place(query)
        turned = (frame.scratch("queries", 4 * query.size), 4 * heads * rows * width, 4 * width, 4 * heads * width)
        parts = frame.parts(query.size, batch * rows)
        places = address_of(geometry)
        frame.launch(
            append, parts, *at, *place(key), *place(value), *turned, *place(keys), *place(values), batch, rows,
            heads if self._turns else 0, key_heads, width, value.shape[3], int(keys.dtype == FLOAT16),
            places + 8 * batch, places + 16 * batch, *rotation.words, frame.scratch("head", 4 * width * parts),
        )  # fmt: skip

        out = np.empty((batch, rows, heads, value.shape[3]), FLOAT32)
        self._attend(
            frame, turned if self._turns else at, keys, values, place(out.swapaxes(1, 2)), heads, rows, geometry,
            NOWHERE if bias is None else place(bias), 0 if sink is None else address_of(sink),
        )  # fmt: skip
        return narrowed(out.reshape(batch, rows, -1), dtype), keys, values

    def _projections(self, given: Sequence[Any]) -> tuple[Array | None, Array | None, Array | None]:
        """Query, key and value in float32 with heads apart, whether they came packed or not."""
        heads, key_heads = self._heads, self._key_heads
        query, key, value = given[QUERY], given[KEY], given[VALUE]
        x = widened(query)
        if x is None or x.ndim != 3:
            return None, None, None
        if key is None:
            if x.shape[2] % (heads + 2 * key_heads):
                return None, None, None
            packed = split_heads(x, heads + 2 * key_heads)
            return packed[:, :heads], packed[:, heads : heads + key_heads], packed[:, heads + key_heads :]
        key, value = widened(key), widened(value)
        if key is None or value is None or x.shape[2] % heads or key.shape[2] % key_heads or value.shape[2] % key_heads:
            return None, None, None
        x, key, value = split_heads(x, heads), split_heads(key, key_heads), split_heads(value, key_heads)
        if key.shape != (x.shape[0], key_heads, x.shape[2], x.shape[3]) or value.shape[:3] != key.shape[:3]:
            return None, None, None
        return x, key, value

    @staticmethod
    def _present(
        frame: Frame, past: Array | None, shape: tuple[int, int, int, int], dtype: np.dtype[Any], held: Array
    ) -> Array | None:
        """Storage that holds the past and has room behind it: the past's own where that is bound.

        :param held: how many entries each sequence has.
        """
        kind = dtype if past is None else past.dtype
        if kind != FLOAT32 and kind != FLOAT16:
            return None
        if past is None:
            return np.zeros(shape, kind)
        if (past.shape[0], past.shape[1], past.shape[3]) != (shape[0], shape[1], shape[3]):
            return None
        binding = frame.bound.get(id(past))
        if binding is None or binding.axis != 2:
            storage = np.zeros(shape, kind)
            for index, length in enumerate(held):
                storage[index, :, :length] = past[index, :, :length]
            return storage
        if shape[2] > binding.capacity:
            raise ValueError(f"{shape[2]} entries are more than the {binding.capacity} that its storage holds")
        return binding.view(shape[2])

    def _rotation(self, given: Sequence[Any], rows: int, total: int, width: int) -> _Rotation | None:
        """None where the tables do not fit the heads."""
        if not self._turns:
            return _Rotation((0, 0, 0, 0, 0, 0, FROM_PLACE), ())
        cosine, sine = (
            (widened(given[position]) if table is None else table)
            for position, table in zip((COSINE, SINE), self._tables, strict=True)
        )
        if (
            cosine is None
            or sine is None
            or cosine.ndim != 2
            or cosine.shape != sine.shape
            or 2 * cosine.shape[1] > width
        ):
            return None
        positions, source = given[POSITIONS], FROM_PLACE
        if positions is not None:
            positions = contiguous(positions.astype(np.int64, copy=False))
            # The first prompt counts on from the first id, whatever the others are.
            source = FROM_FIRST if total == rows else FROM_EACH
        angles, half = cosine.shape
        at = 0 if positions is None else address_of(positions)
        words = (half, self._interleaved, address_of(cosine), address_of(sine), angles, at, source)
        return _Rotation(words, (cosine, sine, positions))


@frozen(eq=False)
class _Rotation:
    """:param words: of the kernel that appends.
    :param kept: arrays that they point to.
    """

    words: tuple[int, int, int, int, int, int, int]
    kept: tuple[Any, ...]


@implements("com.microsoft", "GroupQueryAttention")
def _group_query_attention(node: Node) -> Operator | Declined:
    kinds = {node.attributes.get(name, "NONE") for name in ("k_quant_type", "v_quant_type")}
    if node.has_input(KEY_SCALE) or node.has_input(VALUE_SCALE) or not kinds <= {"NONE", b"NONE"}:
        return Declined("its cache is quantized")
    if node.attributes.get("sliding_window_cache", 0):
        return Declined("its cache is a window")
    if node.has_input(QUERY_NORM) or node.has_input(KEY_NORM):
        return Declined("it normalizes its heads")
    if node.wants(3):
        return Declined("its scores are wanted")
    return GroupQueryAttention(node)
