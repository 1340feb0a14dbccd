"""`tokenizer.json` as it is written from a GGUF file's vocabulary."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import BOS, END, TOKENS, TOOL, Tiny, write
from tokenizers import Tokenizer
from tokenmill.contracts.sourcing import NoProgress
from tokenmill.errors import SourceError
from tokenmill_strategies.sources.gguf_import.byte_pairs import PATTERNS
from tokenmill_strategies.sources.gguf_import.conversion import convert


def imported(folder: Path, **metadata: Any) -> Path:
    directory = folder / "out"
    directory.mkdir()
    convert(write(folder / "tiny.gguf", Tiny(metadata=metadata)), directory, NoProgress())
    return directory


def tokenizer(folder: Path, **metadata: Any) -> Tokenizer:
    return Tokenizer.from_file(str(imported(folder, **metadata) / "tokenizer.json"))


def pieces(found: Tokenizer, text: str) -> list[str]:
    return [TOKENS[i] for i in found.encode(text).ids]


def test_bytes_merge_and_special_tokens_are_cut_out_first(tmp_path: Path) -> None:
    found = tokenizer(tmp_path)
    assert pieces(found, "hello he<|tool|>ll") == ["he", "ll", "o", "Ġhe", "<|tool|>", "ll"]
    assert found.decode(found.encode("zażółć he 👩‍💻\n").ids) == "zażółć he 👩‍💻\n"
    assert found.decode([TOOL, *found.encode("he").ids]) == "he"
    assert found.decode([TOOL], skip_special_tokens=False) == "<|tool|>"


def test_a_token_that_is_user_defined_is_found_in_text_and_stays_in_text(tmp_path: Path) -> None:
    kinds = [4 if text == "<|tool|>" else 3 if text.startswith("<|") else 1 for text in TOKENS]
    found = tokenizer(tmp_path, **{"tokenizer.ggml.token_type": kinds})
    assert found.encode("he<|tool|>").ids[-1] == TOOL
    assert found.decode([TOOL]) == "<|tool|>"


@pytest.mark.parametrize("adds", [True, False])
def test_a_text_begins_with_bos_where_the_file_says_so(adds: bool, tmp_path: Path) -> None:
    directory = imported(tmp_path, **{"tokenizer.ggml.add_bos_token": adds})
    found = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert (found.encode("he").ids[0] == BOS) is adds
    assert found.encode("he", add_special_tokens=False).ids[0] != BOS
    assert json.loads((directory / "tokenizer_config.json").read_text())["add_bos_token"] is adds


def test_files_that_do_not_say_begin_as_their_kind_does(tmp_path: Path) -> None:
    assert tokenizer(tmp_path, **{"tokenizer.ggml.pre": "llama-bpe"}).encode("he").ids[0] == BOS


def test_configuration_names_the_special_tokens_and_the_template(tmp_path: Path) -> None:
    directory = imported(tmp_path)
    config = json.loads((directory / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"]) == ("<|bos|>", "<|im_end|>")
    assert config["chat_template"] == "{{ messages }}"
    model = json.loads((directory / "genai_config.json").read_text())["model"]
    assert (model["bos_token_id"], model["eos_token_id"], model["pad_token_id"]) == (BOS, [END], END)
    assert (model["context_length"], model["vocab_size"]) == (64, len(TOKENS))


CUTS = {
    "smollm": ["x", "1", "2", "3", "4", "Ġ", "5", "Ġ", "ĠI", "'m", "!?", "ĊĊ"],
    "gpt-2": ["x", "1234", "Ġ5", "Ġ", "ĠI", "'m", "!?", "ĊĊ"],
    "llama-bpe": ["x", "123", "4", "Ġ", "5", "Ġ", "ĠI", "'m", "!?ĊĊ"],
    "qwen2": ["x", "1", "2", "3", "4", "Ġ", "5", "Ġ", "ĠI", "'m", "!?ĊĊ"],
    "falcon": ["x", "123", "4", "Ġ5", "Ġ", "ĠI", "'", "m", "!?", "ĊĊ"],
    "default": ["x", "123", "4", "Ġ", "5", "Ġ", "ĠI", "'", "m", "!?", "ĊĊ"],
    "tekken": ["x", "1", "2", "3", "4", "Ġ", "5", "Ġ", "ĠI", "'m", "!?ĊĊ"],
}


@pytest.mark.parametrize("name", CUTS)
def test_text_is_cut_by_the_patterns_that_the_file_names(name: str, tmp_path: Path) -> None:
    found = tokenizer(tmp_path, **{"tokenizer.ggml.pre": name})
    cut = [piece for piece, _ in found.pre_tokenizer.pre_tokenize_str("x1234 5  I'm!?\n\n")]
    assert cut == CUTS[name]


def test_every_pattern_can_be_applied(tmp_path: Path) -> None:
    for index, name in enumerate(PATTERNS):
        folder = tmp_path / str(index)
        folder.mkdir()
        found = tokenizer(folder, **{"tokenizer.ggml.pre": name, "tokenizer.ggml.add_bos_token": False})
        text = "Ünï 123.45 don't\r\n\t STOP¿"
        assert found.decode(found.encode(text).ids) == text


# --- pairs with scores -------------------------------------------------------------------------------------------------

SPACE = "▁"


def by_score(text: str, vocabulary: dict[str, int], scores: list[float]) -> list[int]:
    """The published algorithm: always join the neighbours whose union has the highest score, the leftmost of equals;
    what is no token in the end is written in bytes."""
    parts = list(text.replace(" ", SPACE))
    while True:
        unions = [
            (-scores[vocabulary[pair]], at)
            for at in range(len(parts) - 1)
            if (pair := parts[at] + parts[at + 1]) in vocabulary
        ]
        if not unions:
            break
        at = min(unions)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    ids: list[int] = []
    for part in parts:
        ids += [vocabulary[part]] if part in vocabulary else [vocabulary[f"<0x{byte:02X}>"] for byte in part.encode()]
    return ids


def scored_vocabulary(seed: int) -> dict[str, Any]:
    """Bytes, single characters, and 150 words that grow from pairs, each score its own."""
    rng = random.Random(seed)
    words = list("abcde" + SPACE)
    while len(words) < 156:
        word = rng.choice(words) + rng.choice(words)
        if len(word) < 7 and word not in words:
            words.append(word)
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    scores = rng.sample(range(1000), len(words))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": None,
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.tokens": [*special, *words],
        "tokenizer.ggml.scores": [0.0] * len(special) + [-float(score) for score in scores],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(words)],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": None,
    }


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_pairs_join_by_the_score_of_their_union(seed: int, prefix: bool, tmp_path: Path) -> None:
    metadata = scored_vocabulary(seed)
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    vocabulary = {text: i for i, text in enumerate(tokens)}
    path = write(
        tmp_path / "t.gguf",
        Tiny(metadata={**metadata, "tokenizer.ggml.add_space_prefix": prefix}, vocabulary=len(tokens)),
    )
    (tmp_path / "out").mkdir()
    convert(path, tmp_path / "out", NoProgress())
    found = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    rng = random.Random(seed)
    for _ in range(300):
        text = "".join(rng.choices("abcde é", k=rng.randrange(1, 24)))
        ids = found.encode(text).ids
        # Files of this kind begin texts with bos unless they say otherwise.
        assert ids == [1, *by_score(" " + text if prefix else text, vocabulary, scores)], text
        assert found.decode(ids) == text


# --- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, r"a tokenizer 'bert', which cannot be imported: known are gpt2, llama"),
        ({"tokenizer.ggml.pre": "whatever"}, r"cuts text by 'whatever' .* known are .*smollm"),
        ({"tokenizer.ggml.merges": ["h e", "x yy"]}, "merges that do not fit its tokens"),
        ({"tokenizer.ggml.tokens": None}, "lacks 'tokenizer.ggml.tokens': it must be a list"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "288 tokens, 2 kinds"),
        ({"tokenizer.ggml.eos_token_id": 288}, "'tokenizer.ggml.eos_token_id' = 288: it has 288 tokens"),
        ({"tokenizer.ggml.tokens": [*TOKENS, "more"]}, "has 289 tokens"),
        ({"tokenizer.ggml.model": "llama"}, "lacks 'tokenizer.ggml.scores'"),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [1.0]}, "1 scores for 288 tokens"),
    ],
)
def test_vocabularies_that_cannot_be_are_refused(metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=message):
        imported(tmp_path, **metadata)
