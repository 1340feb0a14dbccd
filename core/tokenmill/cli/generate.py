"""`tokenmill generate`: a prompt in, text out."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import click

from tokenmill.api import DEFAULT_MODEL, Model, open_model
from tokenmill.cli.generation_options import generation_options, generation_overrides
from tokenmill.cli.progress import progress_bars
from tokenmill.cli.settings import config_options, read_config
from tokenmill.cli.statistics import statistics_json, statistics_line
from tokenmill.cli.text_output import TextOutput
from tokenmill.contracts.descriptors import ModelSourceDescriptor
from tokenmill.errors import GenerationError
from tokenmill.generation.cancelling import Cancel, cancelled_by_interrupt
from tokenmill.generation.piece import Generation
from tokenmill.generation.streaming import Pieces, collect
from tokenmill.hooks.registry import default_registry


@click.command()
@click.argument("words", nargs=-1, metavar="[MODEL] [PROMPT]")
@click.option(
    "--chat/--raw", "as_chat", default=None, help="Apply the chat template (default if there is one), or not."
)
@click.option("--system", metavar="TEXT", help="A system message before the prompt.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--quiet", "-q", is_flag=True, help="No statistics on stderr.")
@generation_options
@config_options
def generate(
    words: tuple[str, ...],
    as_chat: bool | None,
    system: str | None,
    as_json: bool,
    quiet: bool,
    config_file: Path | None,
    assignments: tuple[str, ...],
    **given: Any,
) -> None:
    """Write a continuation of PROMPT, or of stdin when it is `-` or missing.

    A single argument is the prompt, unless it names a model.
    """
    model_ref, prompt = _arguments(words)
    config = read_config(config_file, assignments, {"model.ref": model_ref, **generation_overrides(given)})
    if system is not None and as_chat is False:
        raise click.UsageError("--system needs a chat template, and --raw applies none")
    prompt = _from_stdin() if prompt is None else prompt
    if not prompt:
        raise GenerationError("the prompt is empty", remedy="give a text")
    with ExitStack() as stack:
        with progress_bars() as progress:
            model = stack.enter_context(open_model(None, config, progress))
        output = TextOutput()
        cancel = stack.enter_context(cancelled_by_interrupt())
        pieces = stack.enter_context(closing(_pieces(model, prompt, system, as_chat, cancel)))
        if as_json:
            generation = collect(pieces)
            reference = config.model.ref or DEFAULT_MODEL
            output.write(json.dumps(_as_json(reference, generation), ensure_ascii=False, indent=2) + "\n")
        else:
            seen = []
            for piece in pieces:
                seen.append(piece)
                output.write(piece.text)
            output.write("\n")
            generation = collect(seen)
            if not quiet:
                click.echo(statistics_line(generation.statistics, generation.finish_reason), err=True)
    if generation.finish_reason == "cancelled":
        raise click.exceptions.Exit(130)


def _pieces(model: Model, prompt: str, system: str | None, as_chat: bool | None, cancel: Cancel) -> Pieces:
    if as_chat is None:
        as_chat = system is not None or model.chat_template is not None
    if not as_chat:
        return model.stream(prompt, cancel=cancel)
    before = [] if system is None else [{"role": "system", "content": system}]
    return model.stream_chat([*before, {"role": "user", "content": prompt}], cancel=cancel)


def _arguments(words: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Model and prompt; None is the default model, and stdin."""
    if len(words) > 2:
        raise click.UsageError("there are more than a model and a prompt; quote the prompt")
    model = words[0] if len(words) == 2 or (words and _names_model(words[0])) else None
    prompt = words[-1] if words and (model is None or len(words) == 2) else None
    return model, None if prompt == "-" else prompt


def _names_model(word: str) -> bool:
    path = Path(word)
    if word.startswith("pypi:") or "\n" in word:
        return word.startswith("pypi:")
    known = {
        alias
        for descriptor in default_registry().active(ModelSourceDescriptor)
        for alias in descriptor.metadata.get("aliases", ())
    }
    try:
        return (
            word in known
            or (path.is_file() and path.suffix in (".onnx", ".gguf"))
            or (path.is_dir() and ("/" in word or os.sep in word))
        )
    except OSError:  # longer than a path may be
        return False


def _from_stdin() -> str:
    if sys.stdin.isatty():
        raise click.UsageError("there is no prompt: give one as an argument, or pipe it in")
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"stdin is not UTF-8 text: byte {error.start} is invalid") from None
    return text.removesuffix("\n").removesuffix("\r")


def _as_json(reference: str, generation: Generation) -> dict[str, Any]:
    """Keys are added, never renamed or removed."""
    return {
        "model": reference,
        "text": generation.text,
        "tokens": list(generation.tokens),
        "finish_reason": generation.finish_reason,
        "logprobs": list(generation.logprobs) or None,
        "alternatives": [
            [{"token": item.token, "logprob": item.logprob} for item in step] for step in generation.alternatives
        ]
        or None,
        "statistics": statistics_json(generation.statistics),
    }
