"""`tokenmill chat`: a conversation at the terminal, or line by line through a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from tokenmill.api import Model, open_model
from tokenmill.cli.generation_options import generation_options, generation_overrides
from tokenmill.cli.progress import progress_bars
from tokenmill.cli.settings import config_options, read_config
from tokenmill.cli.statistics import statistics_line
from tokenmill.cli.text_output import TextOutput
from tokenmill.errors import TemplateError, TokenmillError
from tokenmill.generation.cancelling import cancelled_by_interrupt
from tokenmill.generation.conversation import Chat

HELP = """\
/reset       forget the conversation
/save FILE   write it as JSON
/help        this list
/exit        leave; so does the end of input
Ctrl-C stops a reply, and keeps what came of it. A line that begins with // is sent with one slash."""


@click.command()
@click.argument("model", required=False)
@click.option("--system", metavar="TEXT", help="A system message at the beginning.")
@click.option("--statistics", is_flag=True, help="Statistics of each reply on stderr.")
@generation_options
@config_options
def chat(
    model: str | None,
    system: str | None,
    statistics: bool,
    config_file: Path | None,
    assignments: tuple[str, ...],
    **given: Any,
) -> None:
    """Talk with MODEL. /help lists the commands of a conversation."""
    config = read_config(config_file, assignments, {"model.ref": model, **generation_overrides(given)})
    with progress_bars() as progress:
        opened = open_model(None, config, progress)
    with opened, _conversation(opened, system) as conversation:
        output = TextOutput()
        for line in _lines():
            if line.startswith("/") and not line.startswith("//"):
                if not _command(conversation, line):
                    break
            elif line.strip():
                _turn(conversation, line.removeprefix("/") if line.startswith("//") else line, output, statistics)


def _conversation(model: Model, system: str | None) -> Chat:
    if model.chat_template is None:
        raise TemplateError(
            "the model has no chat template",
            remedy="set model.chat_template to a file, or use `tokenmill generate` for plain text",
        )
    return model.conversation([] if system is None else [{"role": "system", "content": system}])


def _turn(conversation: Chat, text: str, output: TextOutput, statistics: bool) -> None:
    """One reply. What it refuses ends the turn and not the conversation."""
    try:
        with cancelled_by_interrupt() as cancel:
            for piece in conversation.stream(text, cancel=cancel):
                output.write(piece.text)
        output.write("\n")
        if statistics and piece.statistics and piece.finish_reason:
            click.echo(statistics_line(piece.statistics, piece.finish_reason), err=True)
        elif piece.finish_reason in ("context", "cancelled"):
            hint = (
                "the cache is full: /reset, or raise cache.max_len" if piece.finish_reason == "context" else "stopped"
            )
            click.echo(f"({hint})", err=True)
    except TokenmillError as error:
        click.echo(f"error: {error}", err=True)


def _command(conversation: Chat, line: str) -> bool:
    """Obey a line that begins with a slash. :returns: whether the conversation goes on."""
    name, _, argument = line.partition(" ")
    if name in ("/exit", "/quit"):
        return False
    if name == "/reset":
        conversation.reset()
        click.echo("(forgotten)", err=True)
    elif name == "/save":
        _save(conversation, argument.strip())
    elif name == "/help":
        click.echo(HELP, err=True)
    else:
        click.echo(f"there is no {name}; /help lists what there is", err=True)
    return True


def _save(conversation: Chat, file: str) -> None:
    if not file:
        click.echo("usage: /save FILE", err=True)
        return
    path = Path(file).expanduser()
    text = json.dumps({"messages": list(conversation.messages)}, ensure_ascii=False, indent=2) + "\n"
    try:
        path.write_bytes(text.encode("utf-8", "replace"))
    except OSError as error:
        click.echo(f"error: '{path}' cannot be written: {error.strerror or error}", err=True)
        return
    click.echo(f"(saved {len(conversation.messages)} messages to {path})", err=True)


def _lines() -> Iterator[str]:
    """What is typed, with line editing at a terminal; else the lines of stdin."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            yield line.rstrip("\r\n")
        return
    with suppress(ImportError):
        import readline  # noqa: F401  (gives `input` its line editing)
    while True:
        try:
            yield input("> ") if sys.stdout.isatty() else _asked_on_stderr()
        except KeyboardInterrupt:
            click.echo("", err=True)  # the line is given up, the conversation is not
        except EOFError:
            click.echo("", err=True)
            return


def _asked_on_stderr() -> str:
    """`input` would write its question into the piped text."""
    click.echo("> ", nl=False, err=True)
    return input()
