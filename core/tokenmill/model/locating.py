"""Which file of a directory is the decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenmill.errors import ModelFileError
from tokenmill.model.beside import GENAI_CONFIG, named_filename, read_json


def locate(path: Path) -> Path:
    """The `.onnx` file that a path means.

    In a directory: the file that `genai_config.json` names, then `model.onnx`, then `decoder_model_merged.onnx`, then
    the only one there (Optimum and transformers.js keep theirs in `onnx/`).

    :raises ModelFileError: nothing there, or several files and no way to tell which.
    """
    path = path.expanduser()
    if not path.is_dir():
        if not path.exists():
            raise ModelFileError(f"'{path}' does not exist", remedy="give an .onnx file or a directory that holds one")
        if not path.is_file():
            raise ModelFileError(f"'{path}' is neither a file nor a directory")
        return path
    named = _named_by_genai(path)
    if named is not None:
        return named
    for folder in (path, path / "onnx"):
        found = sorted(file for file in folder.glob("*.onnx") if file.is_file()) if folder.is_dir() else []
        if not found:
            continue
        for preferred in ("model.onnx", "decoder_model_merged.onnx"):
            if folder / preferred in found:
                return folder / preferred
        if len(found) == 1:
            return found[0]
        raise ModelFileError(
            f"'{folder}' holds {len(found)} .onnx files: {', '.join(file.name for file in found)}",
            why="none is called model.onnx and no genai_config.json says which is the decoder",
            remedy="give the path of the file instead of the directory",
        )
    names = sorted(file.name for file in path.iterdir())
    listing = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "") if names else "nothing"
    hint = "it holds weights for another runtime: export the model to ONNX, or load a .gguf file by its own name"
    foreign = any(name.endswith((".safetensors", ".gguf", ".bin", ".pt", ".pth")) for name in names)
    raise ModelFileError(
        f"'{path}' holds no .onnx file, but {listing}",
        remedy=hint if foreign else "give a directory that holds an exported model",
    )


def _named_by_genai(directory: Path) -> Path | None:
    file = directory / GENAI_CONFIG
    if not file.is_file():
        return None
    config: dict[str, Any] = read_json(file)
    name = named_filename(config, file)
    if name is None:
        return None
    path = directory / name
    if not path.resolve().is_relative_to(directory.resolve()):
        raise ModelFileError(f"'{file}' names '{name}' as its decoder", why="that is outside the directory")
    if not path.is_file():
        others = ", ".join(sorted(other.name for other in directory.glob("*.onnx"))) or "none"
        raise ModelFileError(
            f"'{file}' names '{name}' as its decoder, which is not there",
            why=f".onnx files in the directory: {others}",
            remedy="fetch the file, or correct model.decoder.filename",
        )
    return path
