"""What a model reference resolves to."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tokenmill.contracts.answers import Answer


class Progress(Protocol):
    """Told how a long job goes on; the command line draws a bar."""

    def start(self, label: str, total: float | None = None) -> None: ...

    def advance(self, amount: float = 1.0) -> None: ...

    def finish(self) -> None: ...


class NoProgress:
    """Says nothing."""

    def start(self, label: str, total: float | None = None) -> None: ...

    def advance(self, amount: float = 1.0) -> None: ...

    def finish(self) -> None: ...


class ModelSource(Protocol):
    """Made by the descriptor's factory: `factory(options)`."""

    @property
    def name(self) -> str: ...

    def accepts(self, reference: str) -> Answer:
        """Whether the reference is of its kind; cheap, without network."""

    def resolve(self, reference: str, progress: Progress) -> Path | str:
        """A decoder directory or `.onnx` file on this machine; or another reference that a further source resolves.

        :raises SourceError: with what was tried.
        """
