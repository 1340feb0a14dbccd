"""Options of commands that generate text: `[generation]` of the configuration, spelled for a command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

#: Setting, type, and a line of help.
_SETTINGS: tuple[tuple[str, Any, str], ...] = (
    ("max_new_tokens", int, "Most new tokens."),
    ("min_new_tokens", int, "No end before as many new tokens."),
    ("temperature", float, "0 always takes the likeliest token."),
    ("top_k", int, "Sample from the k likeliest tokens."),
    ("top_p", float, "Sample from the smallest set with this probability."),
    ("min_p", float, "Sample from tokens with this share of the highest probability."),
    ("repetition_penalty", float, "Above 1: less of what was there already."),
    ("frequency_penalty", float, "Subtracted per occurrence in the output."),
    ("presence_penalty", float, "Subtracted once for what the output holds."),
    ("seed", int, "Of sampling: the same seed gives the same text."),
    ("logprobs", int, "Report log-probabilities of as many alternatives per token (with --json)."),
    ("timeout_s", float, "Stop after as many seconds."),
)


def generation_options(command: F) -> F:
    """Add an option per setting; the command takes them as keywords, None where none was given."""
    for name, kind, text in reversed(_SETTINGS):
        spelled = "--timeout" if name == "timeout_s" else f"--{name.replace('_', '-')}"
        command = click.option(spelled, name, type=kind, help=text)(command)
    stop = click.option("--stop", multiple=True, metavar="TEXT", help="Stop before this text. Repeatable.")
    ignore = click.option("--ignore-eos", is_flag=True, default=None, help="Go on at the model's own end tokens.")
    return stop(ignore(command))


def generation_overrides(given: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, by dotted key."""
    return {f"generation.{name}": value for name, value in given.items() if value not in (None, ())}
