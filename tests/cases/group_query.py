"""Nodes of grouped-query attention, for every backend that has the operator."""

from __future__ import annotations

import math

import numpy as np

ANGLES = 64


def group_query_node(
    rng,
    *,
    batch=1,
    rows=5,
    heads=4,
    groups=2,
    head_size=16,
    past=0,
    capacity=0,
    lengths=None,
    total=None,
    packed=False,
    rotary=0,
    interleaved=0,
    position_ids=None,
    bias=None,
    sink=False,
    norm=False,
    query_lengths=None,
    dtype=np.float32,
    **attributes,
):
    """Random inputs and attributes. `past` tokens are held; the past's extent is that or the capacity."""

    def normal(*shape):
        return rng.standard_normal(shape).astype(dtype)

    lengths = np.array([past + rows] * batch if lengths is None else lengths, np.int32)
    total = int(lengths.max()) if total is None else total
    query, key, value = (normal(batch, rows, n * head_size) for n in (heads, groups, groups))
    extent = capacity or past
    angles = rng.uniform(0, 2 * math.pi, (ANGLES, rotary // 2))
    inputs = [
        *([np.concatenate((query, key, value), axis=-1), None, None] if packed else [query, key, value]),
        *((normal(batch, groups, extent, head_size) for _ in range(2)) if extent else (None, None)),
        lengths - 1,
        np.array(total, np.int32),
        *((np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)) if rotary else (None, None)),
        position_ids,
        None if bias is None else normal(*bias, rows, total),
        normal(heads) if sink else None,
        None,
        None,
        *((normal(head_size), normal(head_size)) if norm else (None, None)),
        None if query_lengths is None else np.array(query_lengths, np.int32),
    ]
    while inputs[-1] is None:
        inputs.pop()
    return inputs, {
        "num_heads": heads,
        "kv_num_heads": groups,
        "do_rotary": int(rotary > 0),
        "rotary_interleaved": interleaved,
        **attributes,
    }


VARIANTS = {
    "prompt": {},
    "packed": {"packed": True, "rotary": 16},
    "interleaved": {"rotary": 16, "interleaved": 1},
    "partial rotary": {"head_size": 32, "rotary": 16},
    "partial interleaved": {"head_size": 32, "rotary": 16, "interleaved": 1},
    "one head each": {"heads": 2, "groups": 2},
    "one group": {"heads": 4, "groups": 1},
    "decode": {"rows": 1, "past": 6, "rotary": 16},
    "chunk": {"rows": 4, "past": 6, "rotary": 16},
    "prompt at capacity": {"capacity": 20, "rotary": 16},
    "decode at capacity": {"rows": 1, "past": 6, "capacity": 20, "rotary": 16},
    "chunk at capacity": {"rows": 3, "past": 6, "capacity": 20, "rotary": 16},
    "full buffer": {"rows": 1, "past": 19, "capacity": 20},
    "batch decode": {"batch": 3, "rows": 1, "past": 9, "lengths": [10, 4, 7], "rotary": 16},
    "batch decode at capacity": {"batch": 3, "rows": 1, "capacity": 16, "lengths": [10, 4, 7], "rotary": 16},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 5.0},
    "window": {"rows": 9, "local_window_size": 3},
    "window decode": {"rows": 1, "past": 9, "local_window_size": 3},
    "window chunk": {"rows": 4, "past": 9, "local_window_size": 3},
    "smooth softmax": {"smooth_softmax": 1},
    "head sink": {"sink": True},
    "head sink, window, softcap": {"sink": True, "rows": 4, "past": 9, "local_window_size": 5, "softcap": 3.0},
    "bias": {"bias": (1, 4)},
    "bias of each sequence": {"batch": 2, "bias": (2, 1)},
    "bias after softcap": {"bias": (1, 1), "rows": 4, "past": 6, "softcap": 3.0},
    "positions of a decode": {"rows": 1, "past": 4, "rotary": 16, "position_ids": np.array([[9]])},
    "positions of a chunk": {"rows": 3, "past": 4, "rotary": 16, "position_ids": np.array([[9, 2, 1]])},
    "first position of a prompt": {"rotary": 16, "position_ids": np.array([[3, 7, 1, 2, 9]])},
    "bidirectional": {"causal": 0},
    "bidirectional with past": {"rows": 3, "past": 4, "causal": 0},
    "float16": {"dtype": np.float16, "rotary": 16},
    "float16 decode": {"dtype": np.float16, "rotary": 16, "rows": 1, "past": 6},
}
