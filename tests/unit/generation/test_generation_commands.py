"""`tokenmill generate` and `tokenmill chat`: bytes, streams and exit codes."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tokenmill
from tokenmill.api import Model

COMMAND = [sys.executable, "-m", "tokenmill.cli.main"]


def environment(**env: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL__")}
    return {**kept, "TOKENMILL__BACKEND__NAME": "reference", **env}


def run(*arguments: str | Path, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, env=environment(**env), timeout=120)


LIMIT = ("--max-new-tokens", "12", "--ignore-eos")


def test_text_is_on_stdout_and_nothing_else(directory: Path, model: Model) -> None:
    found = run("generate", directory, "The mill", "--raw", *LIMIT)
    expected = model.generate("The mill", max_new_tokens=12, ignore_eos=True).text
    assert (found.returncode, found.stdout) == (0, f"{expected}\n".encode())
    assert found.stderr.startswith(b"prompt ") and found.stderr.count(b"\n") == 1
    assert b"ended by length" in found.stderr


def test_the_template_is_applied_when_there_is_one(directory: Path, model: Model) -> None:
    expected = f"{model.chat('Hi', max_new_tokens=12, ignore_eos=True).text}\n".encode()
    assert run("generate", directory, "Hi", "-q", *LIMIT).stdout == expected
    assert run("generate", directory, "Hi", "-q", "--chat", *LIMIT).stdout == expected
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    expected = f"{model.chat(messages, max_new_tokens=12, ignore_eos=True).text}\n".encode()
    assert run("generate", directory, "Hi", "-q", "--system", "Be brief.", *LIMIT).stdout == expected


def test_the_same_bytes_in_every_locale_and_terminal(directory: Path) -> None:
    command = ("generate", directory, "The mill", "-q", "--temperature", "1", "--seed", "3", *LIMIT)
    plain = run(*command)
    for env in ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"FORCE_COLOR": "1", "COLUMNS": "20"}):
        assert run(*command, **env).stdout == plain.stdout
    assert plain.stderr == b""


def test_the_prompt_from_stdin(directory: Path) -> None:
    expected = run("generate", directory, "Ünï 🦙", "--raw", "-q", *LIMIT).stdout
    for arguments in ([directory, "-"], [f"{directory}/"]):
        assert run("generate", *arguments, "--raw", "-q", *LIMIT, stdin="Ünï 🦙\n".encode()).stdout == expected
    by_setting = run("generate", "Ünï 🦙", "--set", f"model.ref={directory}", "--raw", "-q", *LIMIT)
    assert by_setting.stdout == expected


def test_json(directory: Path, model: Model) -> None:
    found = run("generate", directory, "The mill", "--raw", "--json", "--logprobs", "2", *LIMIT)
    assert (found.returncode, found.stderr) == (0, b"")
    report = json.loads(found.stdout)
    expected = model.generate("The mill", max_new_tokens=12, ignore_eos=True, logprobs=2)
    keys = ["model", "text", "tokens", "finish_reason", "logprobs", "alternatives", "statistics"]
    assert list(report) == keys
    assert (report["text"], report["tokens"]) == (expected.text, list(expected.tokens))
    assert (report["model"], report["finish_reason"]) == (str(directory), "length")
    assert report["logprobs"] == pytest.approx(expected.logprobs)
    assert [[item["token"] for item in step] for step in report["alternatives"]] == [
        [item.token for item in step] for step in expected.alternatives
    ]
    assert list(report["statistics"]) == [
        "prompt_tokens", "reused_tokens", "new_tokens", "prompt_seconds", "decode_seconds", "first_token_seconds",
        "prompt_rate", "decode_rate", "peak_memory",
    ]  # fmt: skip


def test_options_are_settings(directory: Path, model: Model) -> None:
    text = model.generate("The mill", max_new_tokens=12, ignore_eos=True).text
    options = ["--top-k", "5", "--top-p", "0.9", "--min-p", "0.01", "--repetition-penalty", "1.1"]
    options += ["--min-new-tokens", "2"]
    options += ["--frequency-penalty", "0.1", "--presence-penalty", "0.1", "--timeout", "60", "--stop", "zzz"]
    assert run("generate", directory, "The mill", "--raw", "-q", *options, *LIMIT).returncode == 0
    stopped = run("generate", directory, "The mill", "--raw", "--stop", text[2], "--stop", text[5], *LIMIT)
    assert stopped.stdout.decode() == text[: min(text.index(text[2]), text.index(text[5]))] + "\n"
    assert b"ended by stop" in stopped.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["DIR", "a", "b"], b"quote the prompt"),
        (["DIR", "a", "--temperature", "hot"], b"--temperature"),
        (["DIR", "a", "--raw", "--system", "x"], b"--raw"),
        (["DIR", "a", "--no-such"], b"--no-such"),
    ],
)
def test_wrong_usage_is_2(directory: Path, arguments: list[str], text: bytes) -> None:
    found = run("generate", *(str(directory) if word == "DIR" else word for word in arguments))
    assert (found.returncode, found.stdout) == (2, b"") and text in found.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["DIR", ""], b"the prompt is empty"),
        (["DIR", "-"], b"the prompt is empty"),
        (["DIR", "a", "--temperature", "-1"], b"command line: generation.temperature = -1.0"),
        (["DIR", "x" * 3000], b"the cache holds 256"),
        (["no-such-model", "a"], b"no-such-model"),
    ],
)
def test_an_error_is_a_message_and_1(directory: Path, arguments: list[str], text: bytes) -> None:
    found = run("generate", *(str(directory) if word == "DIR" else word for word in arguments))
    assert found.returncode == 1 and text in found.stderr and b"Traceback" not in found.stderr
    assert found.stdout == b""


def test_no_tokenizer(tmp_path: Path) -> None:
    zoo = Path(__file__).parents[2] / "data" / "zoo" / "llama-fp32"
    for command in (["generate", zoo, "hi"], ["generate", zoo, "hi", "--chat"], ["chat", zoo]):
        found = run(*command, stdin=b"hi\n")
        assert (found.returncode, found.stdout) == (1, b"")
        assert b"error: " in found.stderr and b"Traceback" not in found.stderr


def test_a_reader_that_leaves_is_no_error(directory: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [*COMMAND, "generate", str(directory), "The mill", "-q", *LIMIT]
        found = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=environment(), timeout=120)
    finally:
        os.close(writing)
    assert (found.returncode, found.stderr) == (141, b"")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_keeps_what_was_produced(directory: Path) -> None:
    # Enough text to be interrupted in: sampled without an end, as long as the context lets it.
    command = [*COMMAND, "generate", str(directory), "The mill", "--raw", "--ignore-eos"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    assert running.stdout is not None and running.stderr is not None
    first = running.stdout.read(1)
    running.send_signal(signal.SIGINT)
    rest, errors = running.communicate(timeout=60)
    whole = run(*command[len(COMMAND) :], "-q").stdout
    assert running.returncode == 130 and b"ended by cancelled" in errors and b"Traceback" not in errors
    assert rest.endswith(b"\n") and whole.startswith((first + rest).removesuffix(b"\n")[:-4])


# --- chat --------------------------------------------------------------------------------------------------------------


def test_a_chat_through_a_pipe(directory: Path, tmp_path: Path, model: Model) -> None:
    saved = tmp_path / "saved.json"
    lines = f"Hello\n\nWhy?\n/save {saved}\n/reset\nHello\n/exit\nnever\n"
    found = run("chat", directory, *LIMIT, stdin=lines.encode())
    with model.conversation(max_new_tokens=12, ignore_eos=True) as chat:
        first, second = chat.say("Hello").text, chat.say("Why?").text
        assert json.loads(saved.read_text(encoding="utf-8")) == {"messages": list(chat.messages)}
    assert (found.returncode, found.stdout.decode()) == (0, f"{first}\n{second}\n{first}\n")
    assert b"saved 4 messages" in found.stderr


def test_commands_of_a_chat(directory: Path, tmp_path: Path) -> None:
    lines = f"/help\n/nothing\n/save\n/save {tmp_path}\n" + "x" * 3000 + "\nHi\n//slash\n"
    found = run("chat", directory, "--statistics", "--system", "Be brief.", *LIMIT, stdin=lines.encode())
    assert found.returncode == 0 and found.stdout.count(b"\n") >= 2
    for text in (
        b"/reset",
        b"there is no /nothing",
        b"usage: /save FILE",
        b"cannot be written",
        b"the cache holds 256",
    ):
        assert text in found.stderr
    assert found.stderr.count(b"ended by length") == 2


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal of POSIX")
def test_a_chat_at_a_terminal(directory: Path) -> None:
    """Ctrl-C gives up a line; Ctrl-D leaves."""
    leader, follower = pty.openpty()
    command = [*COMMAND, "chat", str(directory), "--ignore-eos"]
    running = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env=environment(TERM="dumb"), start_new_session=True
    )
    os.close(follower)
    seen = b""

    def expect(text: bytes, *, interrupt: bool = False) -> None:
        """Wait for a text. A signal that comes while a line is read may wait for the next one: it is sent until it works."""
        nonlocal seen
        seen, limit = b"", time.monotonic() + 60
        while text not in seen:
            assert time.monotonic() < limit, seen
            if select.select([leader], [], [], 0.5)[0]:
                seen += os.read(leader, 4096)
            elif interrupt:
                running.send_signal(signal.SIGINT)
        assert b"Traceback" not in seen

    try:
        expect(b"> ")
        os.write(leader, b"half a li")
        expect(b"half a li")
        expect(b"> ", interrupt=True)
        os.write(leader, b"Hello\n")
        expect(b"> ")
        os.write(leader, b"\x04")
        assert running.wait(timeout=60) == 0
    finally:
        running.kill()
        running.wait()
        os.close(leader)


def test_the_default_model_is_an_alias() -> None:
    from tokenmill.api import DEFAULT_MODEL
    from tokenmill.cli.generate import _arguments

    assert _arguments(()) == (None, None) and _arguments(("-",)) == (None, None)
    assert _arguments(("Why?",)) == (None, "Why?")
    assert _arguments((DEFAULT_MODEL,)) == (DEFAULT_MODEL, None)
    assert _arguments((DEFAULT_MODEL, "Why?")) == (DEFAULT_MODEL, "Why?")
    assert _arguments(("x" * 5000,)) == (None, "x" * 5000)
    assert tokenmill.__version__
