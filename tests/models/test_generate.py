"""The command, from a name and a prompt to the text that ONNX Runtime's logits choose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tokenizers import Tokenizer

pytestmark = pytest.mark.models

EXPECTED = Path(__file__).parents[1] / "data" / "expected.json"
#: Where the two best logits are this close, another rounding of 4-bit products may rightly choose the other token.
MARGIN = 0.5
NEW = 16


def generate(*arguments: str | Path) -> dict[str, Any]:
    """What `tokenmill generate --json` says."""
    command = [sys.executable, "-m", "tokenmill.cli.main", "generate", *map(str, arguments)]
    command += ["--json", "--ignore-eos", "--max-new-tokens", str(NEW)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL__")}
    found = subprocess.run(command, capture_output=True, env=env, timeout=600)
    assert found.returncode == 0, found.stderr.decode()
    report: dict[str, Any] = json.loads(found.stdout)
    return report


def greedy(directory: Path, ids: list[int]) -> tuple[list[int], list[float]]:
    """Tokens and margins by ONNX Runtime, which reads everything again for each token."""
    config = json.loads((directory / "genai_config.json").read_text(encoding="utf-8"))["model"]["decoder"]
    empty = np.zeros((1, config["num_key_value_heads"], 0, config["head_size"]), np.float32)
    session = onnxruntime.InferenceSession(str(directory / "model.onnx"), providers=["CPUExecutionProvider"])
    feeds = {port.name: empty for port in session.get_inputs() if port.name.startswith("past_key_values.")}
    tokens: list[int] = []
    margins: list[float] = []
    while len(tokens) < NEW:
        read = ids + tokens
        feeds |= {"input_ids": np.array([read]), "attention_mask": np.ones((1, len(read)), np.int64)}
        logits = session.run(["logits"], feeds)[0][0, -1]
        second, first = np.argsort(logits)[-2:]
        tokens.append(int(first))
        margins.append(float(logits[first] - logits[second]))
    return tokens, margins


def certain(margins: list[float]) -> int:
    """Tokens before the first small margin."""
    return next((index for index, margin in enumerate(margins) if margin < MARGIN), len(margins))


PROMPT = "Write the numbers from 1 to 20, separated by commas."
#: What the model's own template makes of it.
CHAT = f"""\
<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
<|im_start|>user
{PROMPT}<|im_end|>
<|im_start|>assistant
"""


@pytest.mark.parametrize(
    ("arguments", "read"), [(["1, 2, 3, 4, 5, 6,", "--raw"], "1, 2, 3, 4, 5, 6,"), ([PROMPT], CHAT)]
)
def test_the_default_model(arguments: list[str], read: str, default_model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(default_model / "tokenizer.json"))
    ids = tokenizer.encode(read).ids
    report = generate(*arguments)
    assert report["statistics"]["prompt_tokens"] == len(ids)
    tokens, margins = greedy(default_model, ids)
    count = certain(margins)
    assert count >= 4 and report["tokens"][:count] == tokens[:count]
    assert report["text"] == tokenizer.decode(report["tokens"])
    assert (report["model"], report["finish_reason"]) == ("smollm2", "length")


def test_an_exported_directory(built_model: Callable[[str], Path]) -> None:
    """The tokens that `expected.json` has from onnxruntime."""
    entries = json.loads(EXPECTED.read_text(encoding="utf-8"))["smollm2-135m-int4"]["greedy"]
    entry = max(entries, key=lambda entry: certain(entry["margins"]))
    count = min(certain(entry["margins"]), NEW)
    report = generate(built_model("smollm2-135m-int4"), entry["prompt"], "--raw")
    assert report["statistics"]["prompt_tokens"] == len(entry["prompt_ids"])
    assert count >= 4 and report["tokens"][:count] == entry["token_ids"][:count]
