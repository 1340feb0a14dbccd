"""Rotary position embedding: pairs of features turned by an angle that grows with the position."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenmill_reference.contrib.convention import Array, Attributes, Inputs, Outputs, fits, refuse, required, wide


def rotated(x: Array, cosine: Array, sine: Array, *, interleaved: bool) -> npt.NDArray[np.float64]:
    """Turn the leading features of `x [..., D]` by angles `[..., R / 2]`; the other `D - R` pass.

    A pair is features `i` and `i + R / 2`, or `2 i` and `2 i + 1` when interleaved.
    """
    half = cosine.shape[-1]
    x, cosine, sine = wide(x), wide(cosine), wide(sine)
    turning, passing = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        first, second = turning[..., 0::2], turning[..., 1::2]
    else:
        first, second = turning[..., :half], turning[..., half:]
    real, imaginary = first * cosine - second * sine, first * sine + second * cosine
    if interleaved:
        turned = np.stack((real, imaginary), axis=-1).reshape(turning.shape)
    else:
        turned = np.concatenate((real, imaginary), axis=-1)
    return np.concatenate((turned, passing), axis=-1)


def rotary_embedding(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """`com.microsoft.RotaryEmbedding`.

    Inputs: x `[batch, sequence, heads * D]` or `[batch, heads, sequence, D]`, position ids (`[1]`, the first position,
    or `[batch, sequence]`), cosine and sine `[positions, R / 2]`.
    """
    x, positions = required(inputs, 0, "input"), required(inputs, 1, "position_ids")
    cosine, sine = required(inputs, 2, "cos_cache"), required(inputs, 3, "sin_cache")
    batch, sequence = _batch_and_sequence(x)
    if positions.size == 1 and positions.ndim < 2:
        positions = np.broadcast_to(positions.reshape(1, 1) + np.arange(sequence), (batch, sequence))
    fits(positions, "position_ids", batch, sequence)
    _check_angles(cosine, sine, positions)
    return [_rotated_heads(x, attributes, cosine[positions], sine[positions])]


def multimodal_rotary_embedding(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """`com.microsoft.MRotaryEmbedding`: position ids `[3, batch, sequence]`; each angle follows one of the three
    streams.

    `mrope_section` gives the number of angles per stream, in three runs (`mrope_layout` 0) or interleaved (1: every
    third angle from the second on follows the height, from the third on the width, as long as their section lasts).
    """
    x, positions = required(inputs, 0, "input"), required(inputs, 1, "position_ids")
    cosine, sine = required(inputs, 2, "cos_cache"), required(inputs, 3, "sin_cache")
    sections = [int(length) for length in attributes["mrope_section"]]
    half = cosine.shape[-1]
    refuse(
        sum(sections) != half,
        f"mrope_section {sections} of MRotaryEmbedding",
        f"the caches hold {half} angles and the sections {sum(sections)}",
        "let the sections add up to half of the rotary dimension",
    )
    if attributes.get("mrope_layout", 0):
        stream = np.zeros(half, np.int64)
        stream[1 : 3 * sections[1] : 3] = 1
        stream[2 : 3 * sections[2] : 3] = 2
    else:
        stream = np.repeat(np.arange(3), sections)
    fits(positions, "position_ids", 3, *_batch_and_sequence(x))
    _check_angles(cosine, sine, positions)
    where = np.moveaxis(positions[stream], 0, -1)  # [batch, sequence, half]
    angle = np.arange(half)
    return [_rotated_heads(x, attributes, cosine[where, angle], sine[where, angle])]


def gemma_rotary_embedding(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """`com.microsoft.GemmaRotaryEmbedding`: angles `[batch, sequence, D] float32`, then q, rotated q, k, rotated k
    (float16).

    Cosine and sine are rounded to float16 before they are used, as in the model that it was taken from.
    """
    angles, *states = (required(inputs, i, name) for i, name in enumerate(("emb", "q", "q_rot", "k", "k_rot")))
    dtype = states[0].dtype
    cosine = wide(np.cos(wide(angles)).astype(dtype))[:, np.newaxis]
    sine = wide(np.sin(wide(angles)).astype(dtype))[:, np.newaxis]
    q, q_rotated, k, k_rotated = (wide(state) for state in states)
    return [(q * cosine + q_rotated * sine).astype(dtype), (k * cosine + k_rotated * sine).astype(dtype)]


def _batch_and_sequence(x: Array) -> tuple[int, int]:
    refuse(
        x.ndim not in (3, 4),
        f"a rotary embedding of an input of rank {x.ndim}",
        "[batch, sequence, heads * D] and [batch, heads, sequence, D] are defined",
    )
    return x.shape[0], x.shape[1] if x.ndim == 3 else x.shape[2]


def _check_angles(cosine: Array, sine: Array, positions: Array) -> None:
    fits(sine, "sin_cache", *cosine.shape)
    outside = positions[(positions < 0) | (positions >= cosine.shape[0])]
    refuse(
        outside.size,
        f"position {outside.flat[0] if outside.size else ''}",
        f"the caches hold the positions 0 to {cosine.shape[0] - 1}",
        "stay within the context length that the model was exported with",
    )


def _rotated_heads(x: Array, attributes: Attributes, cosine: Array, sine: Array) -> Array:
    interleaved = bool(attributes.get("interleaved", 0))
    if x.ndim == 4:
        return rotated(x, cosine[:, np.newaxis], sine[:, np.newaxis], interleaved=interleaved).astype(x.dtype)
    heads = int(attributes.get("num_heads", 0)) if attributes.get("rotary_embedding_dim", 0) else 0
    heads = heads or x.shape[2] // (2 * cosine.shape[-1])
    refuse(
        heads == 0 or x.shape[2] % heads or x.shape[2] // heads < 2 * cosine.shape[-1],
        f"{x.shape[2]} features as {heads} heads",
        f"the heads are not of one size of at least {2 * cosine.shape[-1]}, of which the caches hold the angles",
    )
    split = x.reshape(*x.shape[:2], heads, -1)
    turned = rotated(split, cosine[:, :, np.newaxis], sine[:, :, np.newaxis], interleaved=interleaved)
    return turned.reshape(x.shape).astype(x.dtype)
