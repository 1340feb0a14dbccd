"""A GGUF file into a decoder directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenmill.contracts.sourcing import Progress

from tokenmill_strategies.sources.gguf_import.architecture import read_architecture
from tokenmill_strategies.sources.gguf_import.configuration import genai_config, tokenizer_config
from tokenmill_strategies.sources.gguf_import.decoder_graph import write_decoder
from tokenmill_strategies.sources.gguf_import.reading import GgufFile
from tokenmill_strategies.sources.gguf_import.report import ImportReport
from tokenmill_strategies.sources.gguf_import.tokenizer import write_tokenizer
from tokenmill_strategies.sources.gguf_import.vocabulary import read_vocabulary


def convert(path: Path, directory: Path, progress: Progress) -> None:
    """Write graph, weights, tokenizer, configuration and `import_report.json` into an empty directory.

    :raises SourceError: not of this format, truncated, or an architecture, type or tokenizer that is not known.
    """
    progress.start(f"reading {path.name}")
    try:
        file = GgufFile(path)
        architecture = read_architecture(file)
        vocabulary = read_vocabulary(file, architecture.vocabulary)
        write_tokenizer(file, vocabulary, directory / "tokenizer.json")
    finally:
        progress.finish()
    report = ImportReport()
    progress.start(f"importing {path.name}", float(file.nbytes))
    try:
        write_decoder(file, architecture, directory, report, progress)
    finally:
        progress.finish()
    _write_json(directory / "tokenizer_config.json", tokenizer_config(file, vocabulary))
    _write_json(directory / "genai_config.json", genai_config(architecture, vocabulary))
    _write_json(directory / "import_report.json", {"source": path.name, "types": report.as_json()})


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
