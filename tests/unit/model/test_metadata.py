"""Facts from the files beside a model: which file wins, and which values are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenmill.errors import ModelFileError
from tokenmill.model.beside import read_beside
from tokenmill.model.decoder import DecoderMetadata
from tokenmill.model.loading import load_decoder
from tokenmill.model.metadata import read_metadata

ZOO = Path(__file__).parents[2] / "data" / "zoo"


def metadata(directory: Path, **files: Any) -> DecoderMetadata:
    """What is read of JSON files with these contents (name without ending)."""
    for name, content in files.items():
        suffix = ".yaml" if name == "inference_metadata" else ".json"
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / (name + suffix)).write_text(text)
    return read_metadata(read_beside(directory / "model.onnx"))


def test_nothing_is_known_of_a_bare_file(tmp_path: Path) -> None:
    assert metadata(tmp_path) == DecoderMetadata()


def test_genai_config_states_everything() -> None:
    stated = load_decoder(ZOO / "qwen3-int4").metadata
    assert (stated.context_length, stated.vocab_size, stated.hidden_size, stated.num_layers) == (256, 512, 64, 2)
    assert (stated.num_heads, stated.num_kv_heads, stated.head_size) == (4, 2, 32)
    assert (stated.bos_token_id, stated.eos_token_ids, stated.pad_token_id) == (1, (2,), 0)
    assert stated.search["max_length"] == 256
    assert stated.sources == ("genai_config.json",)


def test_transformers_spellings_of_every_family_are_read(tmp_path: Path) -> None:
    gpt2 = {"n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "eos_token_id": 50256}
    stated = metadata(tmp_path, config=gpt2)
    assert (stated.context_length, stated.hidden_size, stated.num_layers) == (1024, 768, 12)
    # Multi-head attention states neither: as many KV heads as heads, of an equal share of the width.
    assert (stated.num_heads, stated.num_kv_heads, stated.head_size) == (12, 12, 64)
    assert stated.eos_token_ids == (50256,)


def test_a_stated_head_size_is_not_derived_from_the_width(tmp_path: Path) -> None:
    config = {"hidden_size": 640, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256}
    stated = metadata(tmp_path, config=config)
    assert (stated.num_kv_heads, stated.head_size) == (1, 256)


def test_the_text_part_of_a_multimodal_config_comes_first(tmp_path: Path) -> None:
    config = {"hidden_size": 1, "vocab_size": 9, "text_config": {"hidden_size": 64, "num_attention_heads": 4}}
    stated = metadata(tmp_path, config=config)
    assert (stated.hidden_size, stated.head_size, stated.vocab_size) == (64, 16, 9)


def test_each_fact_comes_from_the_first_file_that_states_it(tmp_path: Path) -> None:
    stated = metadata(
        tmp_path,
        inference_metadata="model:\n  context_length: 100\n",
        genai_config={"model": {"context_length": 200, "eos_token_id": [7, 8], "decoder": {"head_size": 32}}},
        generation_config={"eos_token_id": 6, "pad_token_id": 5, "temperature": 0.5},
        config={"max_position_embeddings": 300, "eos_token_id": 4, "bos_token_id": 3, "head_dim": 64, "vocab_size": 10},
    )
    assert (stated.context_length, stated.eos_token_ids, stated.pad_token_id, stated.bos_token_id) == (
        100,
        (7, 8),
        5,
        3,
    )
    assert (stated.head_size, stated.vocab_size) == (32, 10)
    assert stated.search == {"temperature": 0.5}
    assert stated.sources == ("inference_metadata.yaml", "genai_config.json", "generation_config.json", "config.json")


def test_generation_config_goes_before_config_for_the_end_of_text(tmp_path: Path) -> None:
    stated = metadata(tmp_path, generation_config={"eos_token_id": [1, 9, 1]}, config={"eos_token_id": 1})
    assert stated.eos_token_ids == (1, 9)


@pytest.mark.parametrize("absent", [None, -1, [-1]])
def test_no_such_token_is_written_in_several_ways(absent: object, tmp_path: Path) -> None:
    assert metadata(tmp_path, config={"pad_token_id": absent}).pad_token_id is None


REFUSED: dict[str, tuple[str, str, str]] = {
    "cut off": ("genai_config.json", '{"model": {', r"genai_config\.json' is not valid JSON: .*line 1"),
    "not an object": ("config.json", "[1, 2]", r"config\.json' is \[1, 2\]: it must be a mapping"),
    "empty": ("generation_config.json", "", "is not valid JSON"),
    "not text": ("config.json", "\udcff\udcfe", "is not UTF-8 text: byte 0"),
    "too deep": ("config.json", "[" * 200_000, "is not valid JSON"),
    "model a list": ("genai_config.json", '{"model": []}', r"genai_config\.json: model' is \[\]"),
    "text for a number": ("config.json", '{"n_positions": "many"}', r"config\.json: n_positions' is 'many'"),
    "fraction": ("config.json", '{"vocab_size": 1.5}', r"vocab_size' is 1\.5: it must be a positive whole number"),
    "zero": ("config.json", '{"head_dim": 0}', "head_dim' is 0"),
    "negative": ("config.json", '{"hidden_size": -64}', "hidden_size' is -64"),
    "boolean": ("config.json", '{"num_hidden_layers": true}', "num_hidden_layers' is True"),
    "eos text": ("config.json", '{"eos_token_id": "</s>"}', "eos_token_id' is '</s>': it must be a token id or a list"),
    "eos list": ("generation_config.json", '{"eos_token_id": [1, null]}', r"eos_token_id' is \[1, None\]"),
    "decoder a number": ("genai_config.json", '{"model": {"decoder": 3}}', r"model\.decoder' is 3"),
    "search a list": ("genai_config.json", '{"search": [1]}', r"search' is \[1\]"),
    "tabs in YAML": ("inference_metadata.yaml", "model:\n\tio: {}", r"inference_metadata\.yaml' is not valid YAML"),
    "YAML list": ("inference_metadata.yaml", "- model", r"inference_metadata\.yaml' is \['model'\]"),
    "YAML objects": ("inference_metadata.yaml", "model: !!python/object:os.x {}", "is not valid YAML"),
    "YAML number keys": ("inference_metadata.yaml", "1: 2", r"is \{1: 2\}: it must be a mapping of names"),
    "YAML io a list": ("inference_metadata.yaml", "model: {io: [a]}", r"model\.io' is \['a'\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_malformed_file_beside_a_good_model_is_named_with_its_key(case: str, tmp_path: Path) -> None:
    name, text, expected = REFUSED[case]
    shutil.copy(ZOO / "optimum-gpt2" / "model.onnx", tmp_path)
    (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelFileError, match=expected):
        load_decoder(tmp_path)


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    shutil.copy(ZOO / "optimum-gpt2" / "model.onnx", tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelFileError, match=r"config\.json' cannot be read"):
        load_decoder(tmp_path)


def test_the_files_above_an_onnx_folder_count(tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    shutil.copy(ZOO / "optimum-gpt2" / "model.onnx", tmp_path / "onnx")
    shutil.copy(ZOO / "optimum-gpt2" / "config.json", tmp_path)
    decoder = load_decoder(tmp_path)
    assert decoder.directory == tmp_path
    assert decoder.metadata.context_length == 256
