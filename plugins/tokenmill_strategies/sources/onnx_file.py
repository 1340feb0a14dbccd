"""A single `.onnx` file."""

from __future__ import annotations

from pathlib import Path

from tokenmill.contracts.answers import Accepted, Answer, Declined
from tokenmill.contracts.sourcing import Progress

from tokenmill_strategies.sources.local_file import existing, has_suffix


class OnnxSource:
    """Takes the file as it is; one that is missing is its business too, so that the message is about the file."""

    name = "onnx"

    def __init__(self, options: None = None) -> None:
        del options

    def accepts(self, reference: str) -> Answer:
        return Accepted() if has_suffix(reference, ".onnx") else Declined("its name does not end in .onnx")

    def resolve(self, reference: str, progress: Progress) -> Path:
        """:raises SourceError: no such file."""
        return existing(reference)
