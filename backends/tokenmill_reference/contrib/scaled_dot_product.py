"""Scaled dot-product attention: the one formula behind all attention operators."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from attrs import frozen

from tokenmill_reference.contrib.convention import Array, wide


@frozen(eq=False)
class Attended:
    """float64: output `[..., H, S, Dv]`; scores (scaled, capped, biased, before masking) and probabilities `[..., H, S,
    L]`.
    """

    output: npt.NDArray[np.float64]
    scores: npt.NDArray[np.float64]
    probabilities: npt.NDArray[np.float64]


def attend(
    query: Array,
    key: Array,
    value: Array,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    bias: Array | None = None,
    visible: npt.NDArray[np.bool_] | None = None,
    sink: Array | None = None,
) -> Attended:
    """`softmax(cap(scale * Q K') + bias) V`.

    :param query: `[..., H, S, D]`.
    :param key: `[..., Hkv, L, D]`, H a multiple of Hkv: consecutive query heads share one.
    :param value: `[..., Hkv, L, Dv]`.
    :param scale: None is `1 / sqrt(D)`.
    :param softcap: scores become `softcap * tanh(score / softcap)`; 0 leaves them.
    :param bias: added to the scores; broadcast to `[..., H, S, L]`.
    :param visible: keys that a query sees, broadcast likewise. A query that sees none gives zeros.
    :param sink: `[H]`, a score per head that takes part in the softmax and carries no value.
    """
    query, key, value = wide(query), wide(key), wide(value)
    group = query.shape[-3] // key.shape[-3]
    key, value = np.repeat(key, group, axis=-3), np.repeat(value, group, axis=-3)
    if scale is None:
        scale = 1 / np.sqrt(query.shape[-1])
    scores = scale * (query @ key.swapaxes(-1, -2))
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + wide(bias)
    masked = scores if visible is None else np.where(visible, scores, -np.inf)
    probabilities = softmax(masked, None if sink is None else wide(sink)[:, np.newaxis, np.newaxis])
    return Attended(probabilities @ value, scores, probabilities)


def softmax(scores: npt.NDArray[np.float64], sink: Array | None = None) -> npt.NDArray[np.float64]:
    """Along the last axis; all -inf gives zeros. `sink` (one along that axis) only enlarges the denominator."""
    highest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    if sink is not None:
        highest = np.maximum(highest, sink)
    highest = np.where(np.isneginf(highest), 0.0, highest)
    weights = np.exp(scores - highest)
    total = weights.sum(axis=-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink - highest)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total != 0)


def split_heads(x: Array, heads: int) -> Array:
    """`[batch, sequence, heads * D]` to `[batch, heads, sequence, D]`."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def merge_heads(x: Array) -> Array:
    """`[batch, heads, sequence, D]` to `[batch, sequence, heads * D]`."""
    joined = x.swapaxes(1, 2)
    return joined.reshape(*joined.shape[:2], -1)
