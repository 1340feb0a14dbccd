"""The files beside a model that speak of it, read once and checked to be what their names say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from tokenmill.errors import ModelFileError, TokenmillError

GENAI_CONFIG = "genai_config.json"
INFERENCE_METADATA = "inference_metadata.yaml"
HF_CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"


@frozen
class Place:
    """A value inside a file, for messages: `genai_config.json: model.decoder.head_size`."""

    file: str
    key: str = ""
    error: type[TokenmillError] = ModelFileError

    def __truediv__(self, key: str) -> Place:
        return evolve(self, key=f"{self.key}.{key}" if self.key else key)

    def __str__(self) -> str:
        return f"{self.file}: {self.key}" if self.key else self.file

    def refuse(self, value: Any, wanted: str) -> TokenmillError:
        """The error for a value of the wrong type or extent."""
        shown = repr(value)
        return self.error(
            f"'{self}' is {shown[:80]}{'...' if len(shown) > 80 else ''}",
            why=f"it must be {wanted}",
            remedy=f"correct {self.file}",
        )


@frozen
class BesideFiles:
    """The parsed files; empty where there is none.

    :param directory: None for a bare graph.
    """

    directory: Path | None = None
    model_filename: str = ""
    genai: Mapping[str, Any] = field(factory=dict)
    inference: Mapping[str, Any] = field(factory=dict)
    hf: Mapping[str, Any] = field(factory=dict)
    generation: Mapping[str, Any] = field(factory=dict)

    def place(self, file: str) -> Place:
        return Place(str(self.directory / file) if self.directory else file)


def read_beside(model: Path) -> BesideFiles:
    """Read what lies beside a model file; Optimum's `onnx/` folder has it one level up.

    :raises ModelFileError: a file that is there and malformed.
    """
    directory = model.parent
    if directory.name == "onnx" and not any((directory / name).is_file() for name in (GENAI_CONFIG, HF_CONFIG)):
        directory = directory.parent
    return BesideFiles(
        directory=directory,
        model_filename=model.name,
        genai=_optional(directory / GENAI_CONFIG),
        inference=_optional(directory / INFERENCE_METADATA),
        hf=_optional(directory / HF_CONFIG),
        generation=_optional(directory / GENERATION_CONFIG),
    )


def _optional(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    return read_yaml(file) if file.suffix == ".yaml" else read_json(file)


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object. :raises ModelFileError: unreadable, not JSON, or not an object."""
    text = _text(file)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _malformed(file, "JSON", error) from error
    return mapping(value, Place(str(file)))


def read_yaml(file: Path) -> dict[str, Any]:
    """A YAML mapping; an empty file is an empty mapping. :raises ModelFileError: unreadable, not YAML, no mapping."""
    import yaml

    text = _text(file)
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _malformed(file, "YAML", error) from error
    return mapping({} if value is None else value, Place(str(file)))


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ModelFileError(f"'{file}' cannot be read", why=error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise ModelFileError(f"'{file}' is not UTF-8 text", why=f"byte {error.start} is invalid") from error


def _malformed(file: Path, language: str, error: Exception) -> ModelFileError:
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
    return ModelFileError(f"'{file}' is not valid {language}", why=reason, remedy="fetch the file again, or remove it")


def mapping(value: Any, place: Place) -> dict[str, Any]:
    """A mapping with text keys, or the error that names its place."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise place.refuse(value, "a mapping of names to values")
    return dict(value)


def section(parent: Mapping[str, Any], key: str, place: Place) -> dict[str, Any]:
    """A nested mapping; empty when it is missing or null."""
    value = parent.get(key)
    return {} if value is None else mapping(value, place / key)


def name(parent: Mapping[str, Any], key: str, place: Place) -> str | None:
    """A non-empty text; None when it is missing or null."""
    value = parent.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise (place / key).refuse(value, "a non-empty text")
    return value


def names(parent: Mapping[str, Any], key: str, place: Place) -> tuple[str, ...] | None:
    """A list of non-empty texts; None when it is missing or null."""
    value = parent.get(key)
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) and item for item in value):
        raise (place / key).refuse(value, "a list of names")
    return tuple(value)


def named_filename(genai: Mapping[str, Any], file: Path) -> str | None:
    """`model.decoder.filename` of a `genai_config.json`."""
    place = Place(str(file))
    model = section(genai, "model", place)
    return name(section(model, "decoder", place / "model"), "filename", place / "model" / "decoder")
