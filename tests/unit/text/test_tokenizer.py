"""Tokenizers: what lies beside them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_tokenizers
from tokenmill.errors import TokenizerError
from tokenmill.generation.tokenizer import read_tokenizer


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_neither_cut_nor_padded(directory: Path) -> None:
    tokenizer = read_tokenizer(directory)
    text = "The mill grinds slowly, and it grinds fine."
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_of_both_spellings(directory: Path) -> None:
    (directory / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<pad>", "eos_token": "</s>"}))
    configuration = {"bos_token": {"content": "<s>", "lstrip": False}, "pad_token": None}
    (directory / "tokenizer_config.json").write_text(json.dumps(configuration))
    assert read_tokenizer(directory).special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_another_file(directory: Path, tmp_path: Path) -> None:
    assert (
        read_tokenizer(None, str(directory)).vocab_size
        == read_tokenizer(None, str(directory / "tokenizer.json")).vocab_size
    )
    with pytest.raises(TokenizerError, match=r"correct model\.tokenizer"):
        read_tokenizer(directory, str(tmp_path / "gone.json"))


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"model": {"type": "BPE"}}', '{"version": "1.0", "model": null}']
)
def test_a_corrupt_file(directory: Path, content: str) -> None:
    (directory / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match="cannot be read"):
        read_tokenizer(directory)


def test_a_truncated_file(directory: Path) -> None:
    file = directory / "tokenizer.json"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(TokenizerError, match="cannot be read"):
        read_tokenizer(directory)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_corrupt_configuration(directory: Path, content: str) -> None:
    (directory / "tokenizer_config.json").write_text(content)
    with pytest.raises(TokenizerError, match="tokenizer_config"):
        read_tokenizer(directory)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="give token ids instead of text"):
        read_tokenizer(tmp_path)
    with pytest.raises(TokenizerError, match="beside the graph"):
        read_tokenizer(None)


def test_text_that_is_no_unicode(directory: Path) -> None:
    with pytest.raises(TokenizerError, match="cannot be encoded"):
        read_tokenizer(directory).encode("\ud800")


@pytest.mark.parametrize("ids", [[-1], [2**40], ["a"]])
def test_ids_that_are_none(directory: Path, ids: list[int]) -> None:
    with pytest.raises(TokenizerError, match="cannot be decoded"):
        read_tokenizer(directory).decode(ids)
