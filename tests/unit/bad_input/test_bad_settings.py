"""References, configuration and options that cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenmill
from refusals import refused
from tokenmill.errors import ConfigError, PluginError, SourceError, TokenmillError

#: A port that nobody listens at: every connection to it is refused at once.
NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("smolm2", "did you mean 'smollm2'"),
        ("no/such/directory", "no/such/directory"),
        ("gone.onnx", r"gone\.onnx"),
        ("gone.gguf", r"gone\.gguf"),
        ("pypi:", "pypi:"),
        ("pypi:name with spaces#file.gguf", "pypi:name with spaces"),
        ("https://example.org/model.onnx", "example.org"),
    ],
)
def test_a_reference(reference: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path))
    with refused(SourceError, text):
        tokenmill.load(reference)


def test_no_reference() -> None:
    with refused(ConfigError, "no model was named"):
        tokenmill.load("")


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "https_proxy"):
        monkeypatch.setenv(name, NOWHERE)
    monkeypatch.setenv("NO_PROXY", "")
    with refused(SourceError, "cannot be downloaded.*cannot be reached"):
        tokenmill.load("smollm2")
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".whl", ".gguf", ".onnx")]


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"cash": {"max_len": 5}}, ConfigError, "there is no key cash.*did you mean.*cache"),
        ({"cache": {"maxlen": 5}}, ConfigError, r"did you mean cache\.max_len"),
        ({"cache": {"max_len": 0}}, ConfigError, r"cache\.max_len = 0"),
        ({"cache": {"max_len": "many"}}, ConfigError, "cache.max_len = 'many'"),
        ({"cache": {"strategy": "no-such"}}, PluginError, "no-such"),
        ({"cache": 5}, ConfigError, "cache"),
        ({"backend": "no-such"}, PluginError, "no-such.*reference"),
        ({"backend": {"options": {"cpu": {"no_such": 1}}}}, ConfigError, "no_such"),
        ({"backend": {"threads": -1}}, ConfigError, r"backend\.threads = -1"),
        ({"capture": "no-such"}, PluginError, "no-such.*structural"),
        ({"model": {"tokenizer": 5}}, ConfigError, r"model\.tokenizer = 5"),
        ({"generation": {"temperature": "hot"}}, ConfigError, "generation.temperature = 'hot'"),
        ({"trace": {"sinks": ["no-such"]}}, PluginError, "no-such"),
    ],
)
def test_configuration(given: dict[str, Any], error: type[TokenmillError], text: str, directory: Path) -> None:
    with refused(error, text):
        tokenmill.load(directory, **given)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"[cache", "config.toml"),
        (b"\xff\xfe", "config.toml"),
        (b"[cache]\nmax_len = 'x'\n", r"cache\.max_len"),
        (b"[cache]\nmax_len = 5\nmax_len = 6\n", "config.toml"),
        (b"temperature = 1\n", "temperature"),
    ],
)
def test_a_configuration_file(content: bytes, text: str, directory: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(content)
    with refused(ConfigError, text):
        tokenmill.load(directory, config_file=tmp_path / "config.toml")


def test_a_configuration_file_that_is_missing(directory: Path, tmp_path: Path) -> None:
    with refused(ConfigError, "gone.toml"):
        tokenmill.load(directory, config_file=tmp_path / "gone.toml")


@pytest.mark.parametrize(("name", "value"), [("TOKENMILL__CACHE__MAX_LEN", "x"), ("TOKENMILL__CASH__MAX_LEN", "5")])
def test_an_environment_variable(name: str, value: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with refused(ConfigError, name):
        tokenmill.load(directory)
    monkeypatch.delenv(name)


def test_the_command_says_it_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    command = [sys.executable, "-m", "tokenmill.cli.main", "generate", str(tmp_path), "hi"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (1, "", 1)
    assert found.stderr.startswith("error: ") and "is empty" in found.stderr
