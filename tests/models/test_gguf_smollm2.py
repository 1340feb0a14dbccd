"""The default model, from its name to its logits in ONNX Runtime."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from gguf import GGUFReader, dequantize
from tokenizers import Tokenizer
from tokenmill.contracts.sourcing import NoProgress
from tokenmill_strategies.sources.gguf_import.blocks import read_blocks
from tokenmill_strategies.sources.gguf_import.byte_pairs import byte_pair_tokenizer
from tokenmill_strategies.sources.pinned import ALIASES
from tokenmill_strategies.sources.wheel import WheelSource

pytestmark = pytest.mark.models
DATA = Path(__file__).parents[1] / "data"
CASES = json.loads((DATA / "tokenizer_cases.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer(default_model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(default_model / "tokenizer.json"))


def test_texts_become_the_tokens_of_llama_cpp(tokenizer: Tokenizer) -> None:
    wanted = dict(zip(CASES["strings"], CASES["ids"]["smollm2-135m"], strict=True))
    found = {text: tokenizer.encode(text).ids for text in wanted}
    assert {text for text in wanted if found[text] != wanted[text]} == set()


def test_tokens_become_the_texts_again(tokenizer: Tokenizer) -> None:
    for text in CASES["strings"]:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_the_text_is_as_likely_as_the_weights_of_the_file_make_it(default_model: Path, tokenizer: Tokenizer) -> None:
    """The mean negative log-likelihood of the weights in float32 is 3.186 (entry `smollm2-135m-fp32`)."""
    ids = tokenizer.encode((DATA / "text.txt").read_text(encoding="utf-8")).ids
    config = json.loads((default_model / "genai_config.json").read_text(encoding="utf-8"))["model"]["decoder"]
    empty = np.zeros((1, config["num_key_value_heads"], 0, config["head_size"]), np.float32)
    session = onnxruntime.InferenceSession(str(default_model / "model.onnx"), providers=["CPUExecutionProvider"])
    feeds = {port.name: empty for port in session.get_inputs() if port.name.startswith("past_key_values.")}
    feeds |= {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
    scores = session.run(["logits"], feeds)[0][0, :-1].astype(np.float64)
    scores -= scores.max(-1, keepdims=True)
    loss = np.mean(np.log(np.exp(scores).sum(-1)) - scores[np.arange(len(ids) - 1), ids[1:]])
    expected = json.loads((DATA / "expected.json").read_text(encoding="utf-8"))["smollm2-135m-fp32"]
    assert len(ids) == expected["tokens"]
    assert loss == pytest.approx(expected["nll"], abs=0.005)
    assert loss == pytest.approx(3.19, abs=0.01)


def test_every_weight_is_that_of_the_file(default_model: Path) -> None:
    """Within one float32 ulp of the largest weight of its block of 32, and to the bit where nothing has a minimum."""
    path = WheelSource().resolve(ALIASES["smollm2"], NoProgress())
    matrices = [tensor for tensor in GGUFReader(path).tensors if len(tensor.shape) == 2]
    assert len(matrices) == 211
    for tensor in matrices:
        found, wanted = read_blocks(tensor).values(), dequantize(tensor.data, tensor.tensor_type)
        largest = np.abs(wanted).reshape(len(wanted), -1, 32).max(-1).repeat(32, axis=-1)
        ulps = 0 if tensor.tensor_type.name == "Q8_0" else 1
        assert (np.abs(found - wanted) <= ulps * np.spacing(largest)).all(), tensor.name


def test_special_tokens_are_the_file_s(default_model: Path, tokenizer: Tokenizer) -> None:
    model = json.loads((default_model / "genai_config.json").read_text(encoding="utf-8"))["model"]
    assert [tokenizer.id_to_token(i) for i in model["eos_token_id"]] == ["<|im_end|>", "<|endoftext|>"]
    assert tokenizer.id_to_token(model["bos_token_id"]) == "<|im_start|>"
    assert tokenizer.decode([1, 2]) == ""


def test_the_patterns_of_qwen2_give_the_tokens_of_llama_cpp() -> None:
    """The tokens and merges that the exporter wrote, cut by the importer's patterns in place of the exporter's."""
    from tokenmill.home import home

    file = home() / "models" / "qwen2.5-0.5b-int4" / "tokenizer.json"
    if not file.is_file():
        pytest.skip("tests/models/build.sh qwen2.5-0.5b-int4 builds it")
    written = json.loads(file.read_text(encoding="utf-8"))
    merges = [tuple(merge) for merge in written["model"]["merges"]]
    tokenizer = byte_pair_tokenizer(written["model"]["vocab"], merges, "qwen2")
    tokenizer.add_special_tokens([token["content"] for token in written["added_tokens"]])
    wanted = dict(zip(CASES["strings"], CASES["ids"]["qwen2.5-0.5b"], strict=True))
    assert {text for text in wanted if tokenizer.encode(text).ids != wanted[text]} == set()
