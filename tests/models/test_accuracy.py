"""Real weights against what onnxruntime makes of them: likelihood of a text, and greedy continuations.

`tests/data/expected.json` holds onnxruntime's figures for the same files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenmill.assembly import Assembly, assemble
from tokenmill.config import load_config

pytestmark = pytest.mark.models

DATA = Path(__file__).parents[1] / "data"
EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text())
#: How far the mean negative log-likelihood may lie from onnxruntime's. With int4 weights both round activations to int8,
#: each in its own blocks; in float32 only the order of sums differs.
NLL_BOUND = {"int4": 0.02, "fp32": 0.001}
#: Where the two best logits are this close, another rounding may rightly choose the other token.
MARGIN_BOUND = {"int4": 0.5, "fp32": 0.01}


@pytest.fixture(scope="module", params=sorted(EXPECTED))
def model(request: pytest.FixtureRequest, built_model: Callable[[str], Path]) -> Iterator[tuple[str, Assembly]]:
    name: str = request.param
    directory = built_model(name)
    assembly = assemble(directory, load_config(overrides={"backend": {"name": "cpu"}, "cache": {"max_len": 512}}))
    yield name, assembly
    assembly.close()


def test_likelihood_of_a_text(model: tuple[str, Assembly]) -> None:
    name, assembly = model
    assert assembly.decoder.directory is not None
    tokenizer = Tokenizer.from_file(str(assembly.decoder.directory / "tokenizer.json"))
    ids = tokenizer.encode((DATA / "text.txt").read_text(encoding="utf-8")).ids
    assert len(ids) == EXPECTED[name]["tokens"]
    with assembly.session() as session:
        logits = session.decode(ids, 0)[:-1].astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    nll = np.mean(np.log(np.exp(logits).sum(axis=-1)) - logits[np.arange(len(ids) - 1), ids[1:]])
    assert abs(nll - EXPECTED[name]["nll"]) < NLL_BOUND[name.rpartition("-")[2]]


@pytest.mark.parametrize("index", range(5))
def test_greedy_tokens_until_the_margin_is_small(model: tuple[str, Assembly], index: int) -> None:
    name, assembly = model
    expected = EXPECTED[name]["greedy"][index]
    bound = MARGIN_BOUND[name.rpartition("-")[2]]
    certain = next(
        (step for step, margin in enumerate(expected["margins"]) if margin < bound), len(expected["margins"])
    )
    with assembly.session() as session:
        tokens = [session.decode(expected["prompt_ids"], 0, want="token")]
        while len(tokens) < certain:
            tokens.append(session.decode([tokens[-1]], session.length, want="token"))
    assert tokens[:certain] == expected["token_ids"][:certain]
