from __future__ import annotations

import math

import numpy as np
import pytest
from conftest import distance
from tokenmill.errors import OperatorError
from tokenmill_reference.contrib import operators

POSITIONS = 24


def node(rng, *, heads=3, head_size=16, rotary=0, four=False, positions=None, dtype=np.float32, **attributes):
    """Random inputs of a RotaryEmbedding of 2 sequences of 5 rows."""
    shape = (2, heads, 5, head_size) if four else (2, 5, heads * head_size)
    angles = rng.uniform(0, 2 * math.pi, (POSITIONS, (rotary or head_size) // 2))
    ids = rng.integers(0, POSITIONS, (2, 5)) if positions is None else np.array(positions)
    inputs = [rng.standard_normal(shape).astype(dtype), ids, np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)]
    if rotary:
        attributes |= {"num_heads": heads, "rotary_embedding_dim": rotary}
    return inputs, attributes


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"four": True},
        {"positions": [7]},
        {"four": True, "positions": [7]},
        {"head_size": 32, "rotary": 16},
        {"head_size": 32, "rotary": 16, "four": True},
        {"rotary": 16},
        {"heads": 1},
        {"dtype": np.float16},
        {"scale": 0.5},
    ],
    ids=str,
)
def test_agrees_with_onnxruntime(agrees, rng, variant, interleaved):
    inputs, attributes = node(rng, interleaved=interleaved, **variant)
    agrees("RotaryEmbedding", inputs, attributes)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize(
    "variant", [{}, {"four": True}, {"head_size": 32, "rotary": 16}, {"dtype": np.float16}], ids=str
)
@pytest.mark.parametrize("sections", [[4, 2, 2], [3, 3, 2], [8, 0, 0]])
def test_multimodal(agrees, rng, variant, layout, interleaved, sections):
    inputs, attributes = node(rng, interleaved=interleaved, **variant)
    inputs[1] = rng.integers(0, POSITIONS, (3, 2, 5))
    attributes |= {"mrope_section": sections, "mrope_layout": layout, "num_heads": 3}
    agrees("MRotaryEmbedding", inputs, attributes)


def test_multimodal_of_equal_streams_is_the_plain_one(rng):
    inputs, _ = node(rng)
    (plain,) = operators()["com.microsoft", "RotaryEmbedding"](inputs, {}, 1)
    inputs[1] = np.stack([inputs[1]] * 3)
    (multimodal,) = operators()["com.microsoft", "MRotaryEmbedding"](inputs, {"mrope_section": [3, 3, 2]}, 1)
    np.testing.assert_array_equal(plain, multimodal)


def test_gemma_rounds_its_angles_to_the_type_of_the_states(rng):
    """onnxruntime's CPU provider lacks it: the formula of its documentation."""
    angles = rng.uniform(0, 9, (2, 5, 8)).astype(np.float32)
    q, q_rotated, k, k_rotated = (rng.standard_normal((2, 3, 5, 8)).astype(np.float16) for _ in range(4))
    cosine, sine = (f(angles.astype(np.float64)).astype(np.float16)[:, None].astype(float) for f in (np.cos, np.sin))
    results = operators()["com.microsoft", "GemmaRotaryEmbedding"]([angles, q, q_rotated, k, k_rotated], {}, 2)
    for result, x, turned in zip(results, (q, k), (q_rotated, k_rotated), strict=True):
        assert distance(result, (x.astype(float) * cosine + turned.astype(float) * sine).astype(np.float16)) < 1


def test_refuses_what_does_not_fit(rng):
    inputs, attributes = node(rng, head_size=32, rotary=16)
    rotary, multimodal = (operators()["com.microsoft", f"{name}RotaryEmbedding"] for name in ("", "M"))
    for index, value, message in [
        (0, np.zeros((2, 5), np.float32), r"rank 2"),
        (0, np.zeros((2, 5, 95), np.float32), r"95 features as 3 heads"),
        (1, np.full((2, 5), POSITIONS), r"position 24: .* 0 to 23"),
        (1, np.full((2, 5), -1), r"position -1"),
        (1, np.zeros((2, 4), np.int64), r"\[2, 4\].*\[2, 5\]"),
        (3, np.zeros((POSITIONS, 4), np.float32), r"sin_cache of shape \[24, 4\].*\[24, 8\]"),
    ]:
        changed = [value if at == index else x for at, x in enumerate(inputs)]
        with pytest.raises(OperatorError, match=message):
            rotary(changed, attributes, 1)
    with pytest.raises(OperatorError, match=r"position_ids of shape \[2, 5\].*\[3, 2, 5\]"):
        multimodal(inputs, {**attributes, "mrope_section": [4, 2, 2]}, 1)
    with pytest.raises(OperatorError, match=r"mrope_section \[4, 2, 1\]"):
        multimodal([inputs[0], np.zeros((3, 2, 5), np.int64), *inputs[2:]], {"mrope_section": [4, 2, 1]}, 1)
