"""What was said before the subcommand."""

from __future__ import annotations

from pathlib import Path

from attrs import define


@define
class Invocation:
    """Options of `tokenmill` itself, for its subcommands and its error handler."""

    config: Path | None = None
    debug: bool = False
