"""`MultiHeadAttention` and `Attention` of `com.microsoft`: encoder and decoder attention with padding masks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenmill_reference.contrib.convention import Array, Attributes, Inputs, Outputs, given, refuse, required, wide
from tokenmill_reference.contrib.scaled_dot_product import attend, merge_heads, split_heads


def multi_head_attention(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """Inputs: query `[B, S, H D]` (or packed with key and value, `[B, S, H, 3, D]`), key `[B, L, H D]` (packed with
    value `[B, L, H, 2, D]`, or with heads apart `[B, H, L, D]`), value likewise, bias `[H D + H D + H Dv]`, padding
    mask, attention bias `[B or 1, H or 1, S, total]`, past key and value `[B, H, P, D]`, and the past's length when it
    shares the present's buffer. Outputs: `[B, S, H Dv]`, present key and value, probabilities `[B, H, S, total]`.
    """
    refuse(
        given(inputs, 9) is not None,
        "MultiHeadAttention with cache_indirection",
        "beams that share a cache are left to the caller",
        "export without beam search inside the graph",
    )
    query, key, value = _projected(inputs, int(attributes["num_heads"]))
    dtype = query.dtype
    past_key, past_value, shared = given(inputs, 6), given(inputs, 7), given(inputs, 8)
    held = None if shared is None else int(shared.reshape(-1)[0])
    present_key, key = _appended(past_key, key, held)
    present_value, value = _appended(past_value, value, held)
    mask = _mask_bias(given(inputs, 4), attributes, query.shape[0], query.shape[2], key.shape[2])
    bias = given(inputs, 5)
    attended = attend(
        query,
        key,
        value,
        scale=float(attributes.get("scale", 0.0)) or None,
        bias=mask if bias is None else mask + wide(bias),
        visible=_causal(attributes, query.shape[2], key.shape[2]),
    )
    results = [merge_heads(attended.output), present_key, present_value, attended.probabilities]
    return [result.astype(dtype) for result in results][:outputs]


def attention(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """Projects its input first. Inputs: x `[B, S, E]`, merged weights `[E, H D + H D + H Dv]`, bias, mask, past
    `[2, B, H, P, D]`, attention bias, the past's length when the buffer is shared. Outputs: `[B, S, H Dv]`, present.
    """
    refuse(
        attributes.get("do_rotary", 0),
        "com.microsoft.Attention with do_rotary=1",
        "its angles are not among its inputs, and their base is not documented",
        "export with RotaryEmbedding and MultiHeadAttention, or GroupQueryAttention",
    )
    x, weights = required(inputs, 0, "input"), required(inputs, 1, "weights")
    heads = int(attributes["num_heads"])
    sizes = [int(size) for size in attributes.get("qkv_hidden_sizes") or [weights.shape[1] // 3] * 3]
    projected = wide(x) @ wide(weights)
    bias = given(inputs, 2)
    if bias is not None:
        projected = projected + wide(bias)
    query, key, value = (split_heads(part, heads) for part in np.split(projected, np.cumsum(sizes)[:2], axis=-1))
    past, shared = given(inputs, 4), given(inputs, 6)
    held = int(shared.reshape(-1)[0]) if shared is not None and attributes.get("past_present_share_buffer", 0) else None
    present_key, key = _appended(None if past is None else past[0], key, held)
    present_value, value = _appended(None if past is None else past[1], value, held)
    mask = _mask_bias(given(inputs, 3), attributes, x.shape[0], x.shape[1], key.shape[2])
    extra = given(inputs, 5)
    attended = attend(
        query,
        key,
        value,
        scale=float(attributes.get("scale", 0.0)) or None,
        bias=mask if extra is None else mask + wide(extra),
        visible=_causal(attributes, x.shape[1], key.shape[2]),
    )
    results = [merge_heads(attended.output).astype(x.dtype)]
    if outputs > 1:
        results.append(np.stack((present_key, present_value)).astype(x.dtype))
    return results


def _projected(inputs: Inputs, heads: int) -> tuple[Array, Array, Array]:
    """Query, key and value with heads apart and their bias added, `[B, H, S, D]`."""
    query, key, value = required(inputs, 0, "query"), given(inputs, 1), given(inputs, 2)
    bias = given(inputs, 3)
    # Keys that come with heads apart are a finished cache: their bias is already in them.
    apart = key is not None and key.ndim == 4
    if query.ndim == 5:
        query, key, value = (query[:, :, :, part].swapaxes(1, 2) for part in range(3))
    else:
        query = split_heads(query, heads)
    if key is None:
        refuse(True, "MultiHeadAttention without a key", "only a packed query carries its own", "feed the key")
    elif key.ndim == 5:
        key, value = (key[:, :, :, part].swapaxes(1, 2) for part in range(2))
    elif key.ndim == 3:
        key = split_heads(key, heads)
    if value is not None and value.ndim == 3:
        value = split_heads(value, heads)
    assert key is not None
    assert value is not None
    if bias is None:
        return query, key, value
    sizes = [part.shape[1] * part.shape[3] for part in (query, key)]
    dtype = query.dtype
    parts = [part.reshape(heads, 1, -1) for part in np.split(wide(bias), np.cumsum(sizes))]
    query = (wide(query) + parts[0]).astype(dtype)
    if not apart:
        key, value = (wide(key) + parts[1]).astype(dtype), (wide(value) + parts[2]).astype(dtype)
    return query, key, value


def _appended(past: Array | None, new: Array, held: int | None) -> tuple[Array, Array]:
    """The present, and its logical part that attention reads. `held` tokens of a shared buffer are past."""
    if past is None:
        return new, new
    if held is None:
        joined = np.concatenate((past.astype(new.dtype), new), axis=2)
        return joined, joined
    present = past.astype(new.dtype)
    total = held + new.shape[2]
    present[:, :, held:total] = new
    return present, present[:, :, :total]


def _causal(attributes: Attributes, rows: int, total: int) -> npt.NDArray[np.bool_] | None:
    """The last query stands at the last key."""
    if not attributes.get("unidirectional", 0):
        return None
    return np.arange(total) <= np.arange(total - rows, total)[:, np.newaxis]


def _mask_bias(
    mask: Array | None, attributes: Attributes, batch: int, rows: int, total: int
) -> npt.NDArray[np.float64]:
    """A padding mask in any of its forms as what it adds to the scores, `[B or 1, 1, S or 1, total]`.

    1-D masks are ends of the keys `[B]`, with exclusive ends and inclusive starts `[2 B]`, or lengths followed by
    cumulated lengths `[3 B + 2]`; others hold 1 for a key that is seen and 0 for padding.
    """
    if mask is None:
        return np.zeros((1, 1, 1, 1))
    columns = np.arange(total)
    if mask.ndim == 1:
        ends = mask[:batch, np.newaxis]
        starts = mask[batch : 2 * batch, np.newaxis] if mask.size == 2 * batch else np.zeros_like(ends)
        seen = ((columns >= starts) & (columns < ends))[:, np.newaxis, np.newaxis]
    elif mask.ndim == 2:
        seen = (mask > 0)[:, np.newaxis, np.newaxis]
    elif mask.ndim == 3:
        seen = (mask > 0)[:, np.newaxis]
    else:
        seen = mask[:, :, total - rows : total, :total] > 0
    if seen.shape[-1] < total:
        # A mask over the new keys alone leaves the past visible.
        past = np.ones((*seen.shape[:-1], total - seen.shape[-1]), bool)
        seen = np.concatenate((past, seen), axis=-1)
    return np.where(seen, 0.0, float(attributes.get("mask_filter_value", -10000.0)))
