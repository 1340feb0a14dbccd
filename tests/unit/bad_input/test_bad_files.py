"""Files that are missing, cut, of another kind, or lead astray."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import tokenmill
from refusals import refused
from tokenmill.errors import ModelFileError, SourceError, TokenizerError, TokenmillError


def cut(file: str, keep: float = 0.5) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        data = (directory / file).read_bytes()
        (directory / file).write_bytes(data[: int(len(data) * keep)])

    return change


def write(file: str, data: bytes) -> Callable[[Path], object]:
    return lambda directory: (directory / file).write_bytes(data)


def external(key: str, value: str) -> Callable[[Path], None]:
    """Change where the graph says that its first external tensor is."""

    def change(directory: Path) -> None:
        proto = onnx.load(directory / "model.onnx", load_external_data=False)
        tensor = next(tensor for tensor in proto.graph.initializer if tensor.external_data)
        entry = next(entry for entry in tensor.external_data if entry.key == key)
        entry.value = value
        onnx.save(proto, directory / "model.onnx")

    return change


def outside(directory: Path) -> None:
    shutil.copy(directory / "model.onnx.data", directory.parent / "model.onnx.data")
    external("location", "../model.onnx.data")(directory)


CASES: dict[str, tuple[Callable[[Path], object], type[TokenmillError], str]] = {
    "graph truncated": (cut("model.onnx"), ModelFileError, r"model\.onnx.*(truncated|cut)"),
    "graph empty": (write("model.onnx", b""), ModelFileError, r"model\.onnx' is empty"),
    "graph is text": (write("model.onnx", b"hello, this is no graph"), ModelFileError, r"model\.onnx"),
    "graph is a web page": (write("model.onnx", b"<!DOCTYPE html><html></html>"), ModelFileError, "HTML"),
    "graph is a zip archive": (write("model.onnx", b"PK\x03\x04" + bytes(60)), ModelFileError, "zip archive"),
    "graph is a git-lfs pointer": (
        write("model.onnx", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"),
        ModelFileError,
        "git lfs pull",
    ),
    "graph missing": (lambda directory: (directory / "model.onnx").unlink(), SourceError, "which is not there"),
    "weights missing": (lambda directory: (directory / "model.onnx.data").unlink(), ModelFileError, "does not exist"),
    "weights truncated": (cut("model.onnx.data"), ModelFileError, r"the file ends at [\d,]+.*truncated"),
    "weights empty": (write("model.onnx.data", b""), ModelFileError, r"model\.onnx\.data"),
    "weights outside the directory": (outside, ModelFileError, "outside"),
    "weights by absolute path": (external("location", "/etc/passwd"), ModelFileError, "outside|absolute"),
    "weights at a negative offset": (external("offset", "-4096"), ModelFileError, "-4096"),
    "weights beyond the end": (external("offset", str(2**40)), ModelFileError, "the file ends at"),
    "weights at no number": (external("offset", "here"), ModelFileError, "here"),
    "weights of another length": (external("length", "4"), ModelFileError, "4"),
    "genai_config.json cut": (cut("genai_config.json"), SourceError, r"genai_config\.json.*not valid JSON"),
    "genai_config.json a list": (write("genai_config.json", b"[]"), SourceError, r"genai_config\.json"),
    "inference_metadata.yaml no YAML": (
        write("inference_metadata.yaml", b"model: [1, 2"),
        ModelFileError,
        r"inference_metadata\.yaml",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_model_s_files(case: str, copy: Path) -> None:
    change, error, text = CASES[case]
    change(copy)
    with refused(error, text):
        tokenmill.load(copy, backend="reference")


TOKENIZERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (cut("tokenizer.json"), "cannot be read.*fetch the file again"),
    "empty": (write("tokenizer.json", b""), "cannot be read"),
    "of another kind": (write("tokenizer.json", b"{}"), "cannot be read"),
    "no UTF-8": (write("tokenizer.json", b"\xff\xfe{}"), "cannot be read"),
    "missing": (lambda directory: (directory / "tokenizer.json").unlink(), "give token ids instead of text"),
    "configuration cut": (cut("tokenizer_config.json"), r"tokenizer_config\.json"),
    "configuration a list": (write("tokenizer_config.json", b"[]"), r"tokenizer_config\.json"),
}


@pytest.mark.parametrize("case", TOKENIZERS)
def test_a_tokenizer_s_files(case: str, copy: Path) -> None:
    change, text = TOKENIZERS[case]
    change(copy)
    with tokenmill.load(copy, backend="reference") as model, refused(TokenizerError, text):
        model.generate("hi", max_new_tokens=1)


def test_token_ids_of_merges_that_the_vocabulary_lacks(copy: Path) -> None:
    content = json.loads((copy / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["merges"].append(["no", "where"])
    (copy / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with tokenmill.load(copy, backend="reference") as model, refused(TokenizerError, "cannot be read"):
        model.generate("hi")


def test_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with refused(SourceError, r"holds no \.onnx file"):
        tokenmill.load(tmp_path / "empty")


@pytest.mark.parametrize("data", [b"", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, b"not a gguf file at all"])
def test_a_gguf_file(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path / "home"))
    (tmp_path / "model.gguf").write_bytes(data)
    with pytest.raises((SourceError, ModelFileError), match=r"model\.gguf"):
        tokenmill.load(tmp_path / "model.gguf")


@pytest.mark.parametrize("data", [b"", b"nothing", b"\x08\x07"])
def test_bytes_that_are_no_graph(data: bytes) -> None:
    with refused(ModelFileError, "the model in memory"):
        tokenmill.compile(data, backend="reference")
