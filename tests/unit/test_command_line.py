"""Exit codes and streams of the command itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from tokenmill.cli import main as entry
from tokenmill.errors import ModelFileError

COMMAND = [sys.executable, "-m", "tokenmill.cli.main"]


def environment(**env: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL__")}, **env}


def tokenmill(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, env=environment(**env), timeout=60)


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_subcommand(flag: str) -> None:
    found = tokenmill(flag)
    assert (found.returncode, found.stderr) == (0, "")
    for name, command in entry.SUBCOMMANDS.items():
        assert name in found.stdout and command.summary in found.stdout


def test_version() -> None:
    assert tokenmill("--version").stdout.startswith("tokenmill, version ")


@pytest.mark.parametrize("arguments", [["no-such-command"], ["plugins", "--no-such-option"], ["inspect"]])
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    found = tokenmill(*arguments)
    assert (found.returncode, found.stdout) == (2, "")
    assert "Usage: tokenmill" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["plugins", "--set", "cache.max_len=x"], "error: command line: cache.max_len = 'x' cannot be used"),
        (["plugins", "--set", "cache.max_len"], "write it as section.key=value"),
        (["--config", "gone.toml", "plugins"], "error: configuration file gone.toml cannot be read"),
        (["plugins", "--config", "gone.toml"], "error: configuration file gone.toml cannot be read"),
    ],
)
def test_an_error_is_a_message_and_1(arguments: list[str], text: str) -> None:
    found = tokenmill(*arguments)
    assert (found.returncode, found.stdout) == (1, "")
    assert text in found.stderr and "Traceback" not in found.stderr


def test_an_error_in_the_environment_names_the_variable() -> None:
    found = tokenmill("plugins", TOKENMILL__CACHE__MAX_LEN="0")
    assert found.returncode == 1
    assert "environment variable TOKENMILL__CACHE__MAX_LEN: cache.max_len = '0'" in found.stderr


def test_debug_shows_the_traceback() -> None:
    found = tokenmill("--debug", "plugins", "--set", "cache.max_len=x")
    assert found.returncode == 1
    assert "Traceback" in found.stderr and "error: command line" in found.stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [*COMMAND, "plugins", "--json"]
        found = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=environment(), timeout=60)
    finally:
        os.close(writing)
    assert (found.returncode, found.stderr) == (141, b"")


def test_the_same_bytes_whatever_the_terminal() -> None:
    assert tokenmill("plugins", COLUMNS="40").stdout == tokenmill("plugins", COLUMNS="200", FORCE_COLOR="").stdout


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupt_is_130(tmp_path: Path) -> None:
    # A named pipe as configuration file: the command waits in it until it is interrupted.
    pipe = tmp_path / "config.toml"
    os.mkfifo(pipe)
    running = subprocess.Popen([*COMMAND, "--config", str(pipe), "plugins"], stderr=subprocess.PIPE, env=environment())
    writing = os.open(pipe, os.O_WRONLY)  # returns when the command has opened its end
    try:
        time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=30)
    finally:
        os.close(writing)
    assert running.returncode == 130
    assert b"Traceback" not in errors and b"interrupted" in errors


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ModelFileError("'x.onnx' is empty", remedy="export it again"), "error: 'x.onnx' is empty; export it again\n"),
        (
            ZeroDivisionError("a bug"),
            "internal error: ZeroDivisionError: a bug\nrun `tokenmill --debug ...` for the traceback\n",
        ),
    ],
)
def test_errors_of_a_subcommand(
    error: Exception, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command(name="plugins")
    def failing() -> None:
        raise error

    monkeypatch.setattr(entry.LazyGroup, "get_command", lambda self, ctx, name: failing)
    assert entry.main(["plugins"]) == 1
    assert capsys.readouterr() == ("", text)
