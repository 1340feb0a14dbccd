"""`GroupQueryAttention`: causal attention over a cache that the operator itself extends.

All of a step's geometry follows from three numbers per sequence: T tokens held after the step (`seqlens_k + 1`), Q of
them new, so `P = T - Q` held before. Query row s stands at position P + s.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from attrs import frozen

from tokenmill_reference.contrib.convention import (
    Array,
    Attributes,
    Inputs,
    Outputs,
    given,
    refuse,
    required,
    text,
    wide,
)
from tokenmill_reference.contrib.normalization import root_mean_square_scaled
from tokenmill_reference.contrib.rotary import rotated
from tokenmill_reference.contrib.scaled_dot_product import attend, merge_heads, split_heads


def group_query_attention(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """Inputs, by position (B batch, S rows, H and G query and key/value heads, D head size):

    query `[B, S, H D]` (or all three packed, `[B, S, (H + 2 G) D]`), key and value `[B, S, G D]`, past key and value
    `[B, G, L, D]`, `seqlens_k [B]`, `total_sequence_length` (the largest T), cosine and sine `[positions, R / 2]`,
    position ids `[B, S]`, attention bias `[B or 1, H or 1, S, total]`, head sink `[H]`, two cache scales (refused),
    norm weights of query and key `[D]`, `query_seqlens [B]` (Q; omitted it is `min(S, T)`).

    Outputs: `[B, S, H D]`, present key and value `[B, G, max(L, total), D]`, and with `qk_output` the scores (1) or
    probabilities (2) `[B, H, S, total]`. A past at capacity keeps its extent, so that both can share a buffer. Rows
    that are padding, and cache rows from T on, are not defined; here they are zero.
    """
    _refuse_left_out(inputs, attributes)
    query, key, value = _heads(inputs, attributes)
    batch, _, rows, _ = query.shape
    lengths = required(inputs, 5, "seqlens_k").reshape(-1).astype(np.int64) + 1
    total = int(required(inputs, 6, "total_sequence_length").reshape(-1)[0])
    past_key, past_value = given(inputs, 3), given(inputs, 4)
    counts = given(inputs, 16)
    new = np.minimum(rows, lengths) if counts is None else counts.reshape(-1).astype(np.int64)
    extent = max(total, 0 if past_key is None else past_key.shape[2])
    refuse(
        (lengths > extent).any() or (new > rows).any() or (new > lengths).any(),
        f"GroupQueryAttention with {lengths.tolist()} tokens after the step, {new.tolist()} of them new",
        f"the cache holds {extent} tokens and the query {rows} rows",
        "feed seqlens_k, total_sequence_length and the past of one and the same step",
    )

    query, key = _normalized(query, key, inputs, attributes)
    if attributes.get("do_rotary", 0):
        query, key = _turned(query, key, lengths - new, inputs, attributes)

    dtype = required(inputs, 0, "query").dtype
    output = np.zeros((batch, query.shape[1], rows, value.shape[-1]), dtype)
    present_key = np.zeros((batch, key.shape[1], extent, key.shape[-1]), dtype)
    present_value = np.zeros((batch, key.shape[1], extent, value.shape[-1]), dtype)
    inspected = np.zeros((batch, query.shape[1], rows, total), dtype)
    key, value = key.astype(dtype), value.astype(dtype)
    for index in range(batch):
        step = _Rows(int(lengths[index]), int(new[index]))
        present_key[index] = step.appended(present_key[index], past_key, key, index)
        present_value[index] = step.appended(present_value[index], past_value, value, index)
        seen = step.visible(bool(attributes.get("causal", 1)), int(attributes.get("local_window_size", -1)))
        attended = attend(
            query[index, :, : step.new],
            present_key[index, :, : step.length],
            present_value[index, :, : step.length],
            scale=float(attributes.get("scale", 0.0)) or None,
            softcap=float(attributes.get("softcap", 0.0)),
            bias=step.bias(given(inputs, 10), index),
            visible=seen,
            sink=_sink(inputs, attributes, query.shape[1]),
        )
        output[index, :, : step.new] = attended.output.astype(dtype)
        shown = attended.probabilities if attributes.get("qk_output", 0) == 2 else np.where(seen, attended.scores, 0)
        inspected[index, :, : step.new, : step.length] = shown.astype(dtype)
    return [merge_heads(output), present_key, present_value, inspected][:outputs]


@frozen
class _Rows:
    """One sequence of the batch: tokens after the step, and how many of them are new."""

    length: int
    new: int

    @property
    def past(self) -> int:
        return self.length - self.new

    def appended(self, present: Array, past: Array | None, values: Array, index: int) -> Array:
        """The past's rows and behind them the new ones, in the extent of `present`."""
        if past is not None:
            present[:, : self.past] = past[index, :, : self.past]
        present[:, self.past : self.length] = values[index, :, : self.new]
        return present

    def visible(self, causal: bool, window: int) -> npt.NDArray[np.bool_]:
        """`[new, length]`: a query sees itself and what stands before it; with a window the last `window` of these."""
        if not causal:
            return np.ones((self.new, self.length), bool)
        behind = np.arange(self.past, self.length)[:, np.newaxis] - np.arange(self.length)
        return (behind >= 0) & ((behind < window) | (window < 0))

    def bias(self, bias: Array | None, index: int) -> Array | None:
        return None if bias is None else bias[index % bias.shape[0], :, : self.new, : self.length]


def _heads(inputs: Inputs, attributes: Attributes) -> tuple[Array, Array, Array]:
    """Query, key and value with heads apart, whether they came packed or not."""
    heads, groups = int(attributes["num_heads"]), int(attributes["kv_num_heads"])
    query, key = required(inputs, 0, "query"), given(inputs, 1)
    if key is None:
        packed = split_heads(query, heads + 2 * groups)
        return packed[:, :heads], packed[:, heads : heads + groups], packed[:, heads + groups :]
    return split_heads(query, heads), split_heads(key, groups), split_heads(required(inputs, 2, "value"), groups)


def _normalized(query: Array, key: Array, inputs: Inputs, attributes: Attributes) -> tuple[Array, Array]:
    query_weight, key_weight = given(inputs, 14), given(inputs, 15)
    if query_weight is None or key_weight is None:
        return query, key
    epsilon = float(attributes.get("qk_norm_epsilon", 1e-6))
    normal_query, _ = root_mean_square_scaled(query, float(attributes.get("q_norm_epsilon", epsilon)))
    normal_key, _ = root_mean_square_scaled(key, float(attributes.get("k_norm_epsilon", epsilon)))
    return normal_query * wide(query_weight), normal_key * wide(key_weight)


def _turned(
    query: Array, key: Array, past: npt.NDArray[np.int64], inputs: Inputs, attributes: Attributes
) -> tuple[Array, Array]:
    cosine, sine = required(inputs, 7, "cos_cache"), required(inputs, 8, "sin_cache")
    positions = given(inputs, 9)
    if positions is not None and int(required(inputs, 6, "total_sequence_length").reshape(-1)[0]) == query.shape[2]:
        # The first prompt counts on from the first id, whatever the others are.
        positions = np.broadcast_to(positions.flat[0] + np.arange(query.shape[2]), positions.shape)
    if positions is None:
        # Padding rows may stand beyond the caches; what they become is not defined.
        positions = np.minimum(past[:, np.newaxis] + np.arange(query.shape[2]), cosine.shape[0] - 1)
    cosine, sine = cosine[positions][:, np.newaxis], sine[positions][:, np.newaxis]
    interleaved = bool(attributes.get("rotary_interleaved", 0))
    dtype = required(inputs, 0, "query").dtype
    return (
        rotated(query, cosine, sine, interleaved=interleaved).astype(dtype),
        rotated(key, cosine, sine, interleaved=interleaved).astype(dtype),
    )


def _sink(inputs: Inputs, attributes: Attributes, heads: int) -> Array | None:
    """Smooth softmax is a sink of score 0."""
    sink = given(inputs, 11)
    if sink is None and attributes.get("smooth_softmax", -1) == 1:
        return np.zeros(heads)
    return sink


def _refuse_left_out(inputs: Inputs, attributes: Attributes) -> None:
    quantized = {text(attributes, name, "NONE") for name in ("k_quant_type", "v_quant_type")} != {"NONE"}
    refuse(
        quantized or given(inputs, 12) is not None or given(inputs, 13) is not None,
        "GroupQueryAttention with a quantized cache",
        "the reference keeps the cache in the query's type",
        "export with a float cache",
    )
    refuse(
        attributes.get("sliding_window_cache", 0),
        "GroupQueryAttention with sliding_window_cache=1",
        "the reference keeps the whole sequence and masks the window",
        "export with sliding_window_cache=0; local_window_size alone is supported",
    )
