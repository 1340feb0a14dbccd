"""A `.gguf` file, imported into a decoder directory of the cache."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tokenmill.contracts.answers import Accepted, Answer, Declined
from tokenmill.contracts.sourcing import Progress
from tokenmill.home import home

from tokenmill_strategies.sources.kept import kept
from tokenmill_strategies.sources.local_file import existing, has_suffix

#: Counts up when the importer writes something else for the same file.
IMPORTER = 1


class GgufSource:
    """Imports a file once; another size or time of it, or another importer, imports it anew."""

    name = "gguf"

    def __init__(self, options: None = None) -> None:
        del options

    def accepts(self, reference: str) -> Answer:
        return Accepted() if has_suffix(reference, ".gguf") else Declined("its name does not end in .gguf")

    def resolve(self, reference: str, progress: Progress) -> Path:
        """The decoder directory.

        :raises SourceError: no such file, none of this format, or an architecture, type or tokenizer that is not known.
        """
        file = existing(reference).resolve()
        facts = file.stat()
        identity = {"importer": IMPORTER, "size": facts.st_size, "modified": facts.st_mtime_ns}
        place = hashlib.sha256(str(file).encode()).hexdigest()[:12]

        def make(part: Path) -> None:
            # It loads gguf, onnx and tokenizers, which a model that is imported already does not need.
            from tokenmill_strategies.sources.gguf_import.conversion import convert

            convert(file, part, progress)

        return kept(home() / "imported" / f"{file.stem}-{place}", identity, make, progress)
