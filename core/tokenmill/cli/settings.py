"""Options of every subcommand that reads the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from tokenmill.cli.invocation import Invocation
from tokenmill.config import Config, command_line_setting, load_config

F = TypeVar("F", bound=Callable[..., Any])


def config_options(command: F) -> F:
    """Add `--config FILE` and `--set KEY=VALUE`; the command takes them as `config_file` and `assignments`."""
    file = click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        help="Configuration file (TOML), over the one before.",
    )
    assign = click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="KEY=VALUE",
        help="A setting, such as cache.max_len=1024. Repeatable.",
    )
    return file(assign(command))


def read_config(
    config_file: Path | None, assignments: tuple[str, ...] = (), overrides: Mapping[str, Any] | None = None
) -> Config:
    """The configuration of one call of the command.

    :param overrides: values of the subcommand's own options, by dotted key; None values are left out.
    """
    invocation = click.get_current_context().find_object(Invocation) or Invocation()
    given: dict[str, Any] = {key: value for key, value in (overrides or {}).items() if value is not None}
    given.update(command_line_setting(text) for text in assignments)
    return load_config(config_file or invocation.config, overrides=given, place="command line")
