"""Decoders as exporters write them, on every backend, against what onnxruntime computed from the same files.

`oracle.npz` holds the tokens (a prompt and greedy choices) and the logits of every position but the last token's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from node_cases import recorded_backends
from tokenmill.assembly import assemble
from tokenmill.config import load_config

ZOO = Path(__file__).parents[1] / "data" / "zoo"
STEPS = 7

#: Largest relative l2 distance of a row. Sums of at most 128 float32 products in another order differ by some 1e-6;
#: 4-bit models multiply activations rounded to 8 bits, where one code more or less is 1/256 of the largest.
FLOAT_TOLERANCE, INT4_TOLERANCE = 1e-4, 2e-2


@pytest.mark.parametrize("backend", recorded_backends())
@pytest.mark.parametrize("name", sorted(path.name for path in ZOO.iterdir()))
def test_prompt_and_greedy_steps_match_the_oracle(name: str, backend: str) -> None:
    oracle = np.load(ZOO / name / "oracle.npz")
    tokens, expected = oracle["tokens"], oracle["logits"]
    prompt = len(tokens) - 1 - STEPS
    assembly = assemble(ZOO / name, config=load_config(env={}, overrides={"backend.name": backend}))
    with assembly.session() as session:
        rows = [session.decode(tokens[:prompt], 0)]
        for position in range(prompt, len(tokens) - 1):
            rows.append(session.decode(tokens[position : position + 1], position))
    assembly.close()
    found = np.concatenate(rows)
    assert found.shape == expected.shape and found.dtype == np.float32
    distance = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert distance.max() < (INT4_TOLERANCE if name.endswith("int4") else FLOAT_TOLERANCE)
    best, second = np.sort(expected, axis=1)[:, :-3:-1].T
    # Each of the two may be off by the row's largest error: a smaller margin decides nothing.
    decided = best - second > 2 * np.abs(found - expected).max(axis=1)
    assert decided.any()
    assert (found.argmax(axis=1) == expected.argmax(axis=1))[decided].all()
    if not name.endswith("int4"):
        assert (found.argmax(axis=1)[prompt - 1 :] == tokens[prompt:]).all()
