"""onnxruntime's grouped-query attention, which turns, appends and attends in one node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import evolve, frozen
from tokenmill.contracts.answers import Declined

from tokenmill_cpu.binding import PortBinding
from tokenmill_cpu.frame import Frame, Recording
from tokenmill_cpu.kernels.appending import append
from tokenmill_cpu.kernels.rotary import FROM_EACH, FROM_FIRST, FROM_PLACE
from tokenmill_cpu.operators.attention import FLOAT16, NOWHERE, Attend, Extent, Place, bias_of, flat_place, place
from tokenmill_cpu.operators.floats import FLOAT32, rounded, settled, widened
from tokenmill_cpu.operators.operator import Array, Node, Operator, contiguous, implements

(
    QUERY, KEY, VALUE, PAST_KEY, PAST_VALUE, LENGTHS, TOTAL, COSINE, SINE, POSITIONS, BIAS, SINK, KEY_SCALE, VALUE_SCALE,
    QUERY_NORM, KEY_NORM, NEW,
) = range(17)  # fmt: skip


class GroupQueryAttention(Operator):
    """Of each sequence T tokens are held after the step, `seqlens_k + 1`, and Q of them are new."""

    appends = {PAST_KEY: 1, PAST_VALUE: 2}  # noqa: RUF012
    queues = True

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
        given = (*inputs, *(None,) * 17)[:17] if len(inputs) < 17 else inputs
        projections = self._projections(frame, given)
        past_key, past_value, dtype = given[PAST_KEY], given[PAST_VALUE], given[QUERY].dtype
        if projections is None or (past_key is None) != (past_value is None):
            return NotImplemented
        (batch, rows, width, value_width), query, key, value = projections
        heads, key_heads = self._heads, self._key_heads
        step = _step(frame, given, batch, rows)
        if step is None:
            return NotImplemented
        total, extent = step.total, step.extent
        bias, sink = None, self._no_sink
        if given[BIAS] is not None:
            frame.finish()
            bias = bias_of(given[BIAS], (batch, heads, rows, total))
            if bias is None:
                return NotImplemented
        if given[SINK] is not None:
            sink = settled(frame, given[SINK])
        rotation = self._rotation(frame, given, rows, total, width)
        if rotation is None:
            return NotImplemented
        keys = _present(frame, past_key, (batch, key_heads, extent, width), dtype, step)
        values = _present(frame, past_value, (batch, key_heads, extent, value_width), dtype, step)
        if keys is None or values is None or keys.dtype is not values.dtype:
            return NotImplemented

        narrow, features = int(keys.dtype == FLOAT16), heads * width
        turned, key_place, value_place = query, place(frame, keys), place(frame, values)
        if self._turns:
            memory = frame.scratch("queries", 4 * batch * rows * features)
            turned = (memory, 4 * rows * features, 4 * width, 4 * features)
        parts = frame.parts(batch * rows * features, batch * rows)
        numbers = frame.hold(step.seen.numbers)
        frame.launch(
            append, parts, *query, *key, *value, *turned, *key_place, *value_place, batch, rows,
            heads if self._turns else 0, key_heads, width, value_width, narrow, numbers + 8 * batch, numbers + 16 * batch,
            *rotation, frame.scratch("head", 4 * width * parts),
        )  # fmt: skip
        for cache in (keys, values):
            frame.hold(cache)
        out = np.empty((batch, rows, heads * value_width), FLOAT32)
        self._attend(
            frame, turned, key_place, value_place, flat_place(frame, out, heads),
            (batch, heads, heads // key_heads, rows, width, value_width, narrow), step.seen,
            NOWHERE if bias is None else place(frame, bias), 0 if sink is None else frame.hold(sink),
        )  # fmt: skip
        return rounded(frame, out, dtype), keys, values

    def _projections(
        self, frame: Frame, given: Sequence[Any]
    ) -> tuple[tuple[int, int, int, int], Place, Place, Place] | None:
        """Batch, rows and widths; and where query, key and value are as float32, packed or not."""
        heads, key_heads = self._heads, self._key_heads
        x, key, value = settled(frame, given[QUERY]), given[KEY], given[VALUE]
        if x is None or x.ndim != 3 or not x.size:
            return None
        batch, rows, features = x.shape
        if key is None:
            width, rest = divmod(features, heads + 2 * key_heads)
            if rest:
                return None
            query, batch_step, head_step, row_step = flat_place(frame, x, heads + 2 * key_heads)
            starts = (query, query + heads * head_step, query + (heads + key_heads) * head_step)
            first, second, third = ((start, batch_step, head_step, row_step) for start in starts)
            return (batch, rows, width, width), first, second, third
        key, value = settled(frame, key), settled(frame, value)
        if key is None or value is None or key.shape[:2] != (batch, rows) or value.shape[:2] != (batch, rows):
            return None
        width, rest = divmod(features, heads)
        if rest or key.shape[2] != key_heads * width or value.shape[2] % key_heads:
            return None
        places = (flat_place(frame, x, heads), flat_place(frame, key, key_heads), flat_place(frame, value, key_heads))
        return (batch, rows, width, value.shape[2] // key_heads), *places

    def _rotation(
        self, frame: Frame, given: Sequence[Any], rows: int, total: int, width: int
    ) -> tuple[int, int, int, int, int, int, int] | None:
        """Words of the kernel; None where the tables do not fit the heads."""
        if not self._turns:
            return 0, 0, 0, 0, 0, 0, FROM_PLACE
        cosine, sine = (
            (settled(frame, given[position]) if table is None else table)
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
            if positions.dtype != np.int64 or not positions.flags.c_contiguous:
                frame.finish()
                positions = contiguous(positions.astype(np.int64, copy=False))
            # The first prompt counts on from the first id, whatever the others are.
            source = FROM_FIRST if total == rows else FROM_EACH
        angles, half = cosine.shape
        at = 0 if positions is None else frame.hold(positions)
        return half, self._interleaved, frame.hold(cosine), frame.hold(sine), angles, at, source


@frozen(eq=False)
class _Step:
    """:param seen: keys are those held after the step, rows those that are new.
    :param total: tokens that the longest sequence holds after the step, as the graph says.
    :param extent: entries of the present.
    """

    seen: Extent
    total: int
    extent: int


def _step(frame: Frame, given: Sequence[Any], batch: int, rows: int) -> _Step | None:
    """What all layers of a run share; None where lengths do not fit the past and the rows."""
    sources, past = (given[LENGTHS], given[TOTAL], given[NEW]), given[PAST_KEY]
    binding, length = (None, 0) if past is None else (frame.bound.get(id(past)), past.shape[2])
    key = ("step", *map(id, sources), batch, rows, length, 0 if binding is None else binding.capacity)
    if key not in frame.remembered:
        recording = frame.recording
        if recording is None or binding is None or not recording.gives(*sources):
            frame.finish()
            step = _read_step(sources, batch, rows, length)
        else:
            step = _recorded_step(recording, binding, sources, batch, rows)
        # With the arrays, so that nothing else gets their identity.
        frame.remembered[key] = step, sources
    found: _Step | None = frame.remembered[key][0]
    return found


def _read_step(sources: tuple[Any, Any, Any], batch: int, rows: int, length: int) -> _Step | None:
    lengths, total, counts = sources
    if lengths.size != batch or (counts is not None and counts.size != batch):
        return None
    numbers = np.empty((3, batch), np.int64)
    held, new, first = numbers
    np.add(lengths.reshape(-1), 1, out=held)
    new[:] = np.minimum(held, rows) if counts is None else counts.reshape(-1)
    np.subtract(held, new, out=first)
    total = int(total.reshape(-1)[0])
    extent = max(total, length)
    if held.min() < 0 or held.max() > extent or new.min() < 0 or new.max() > rows:
        return None
    if first.min() < 0 or first.max() > length:
        return None
    return _Step(Extent(numbers, int(held.max())), total, extent)


def _recorded_step(
    recording: Recording, binding: PortBinding, sources: tuple[Any, Any, Any], batch: int, rows: int
) -> _Step | None:
    """A step whose launches fit until the storage is full; replays bring its numbers up to date."""
    step = _read_step(sources, batch, rows, binding.logical_length)
    if step is None:
        return None
    lasting = evolve(step, seen=evolve(step.seen, most=binding.capacity))

    def refresh() -> bool:
        now = _read_step(sources, batch, rows, binding.logical_length)
        if now is None or now.extent > binding.capacity or (now.total == rows) is not (step.total == rows):
            return False
        lasting.seen.numbers[:] = now.seen.numbers
        return True

    recording.refreshes.append(refresh)
    return lasting


def _present(
    frame: Frame, past: Array | None, shape: tuple[int, int, int, int], dtype: np.dtype[Any], step: _Step
) -> Array | None:
    """Storage that holds the past and has room behind it: the past's own where that is bound."""
    kind = dtype if past is None else past.dtype
    if kind != FLOAT32 and kind != FLOAT16:
        return None
    if past is None:
        return np.zeros(shape, kind)
    if (past.shape[0], past.shape[1], past.shape[3]) != (shape[0], shape[1], shape[3]):
        return None
    binding = frame.bound.get(id(past))
    if binding is None or binding.axis != 2:
        frame.finish()
        storage = np.zeros(shape, kind)
        for index, length in enumerate(step.seen.numbers[2]):
            storage[index, :, :length] = past[index, :, :length]
        return storage
    if shape[2] > binding.capacity:
        raise ValueError(f"{shape[2]} entries are more than the {binding.capacity} that its storage holds")
    return binding.view(shape[2])


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
