"""A GGUF file: its metadata by key and its tensors by name, with errors that name both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from gguf import GGUFReader, ReaderTensor
from tokenmill.errors import SourceError

T = TypeVar("T")


class GgufFile:
    """Metadata and memory-mapped tensors. Tensors that are asked for are noted, so that none is left over unseen.

    :raises SourceError: empty, truncated, or not of this format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            reader = GGUFReader(path)
            self._values = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
            self._tensors: dict[str, ReaderTensor] = {tensor.name: tensor for tensor in reader.tensors}
        except Exception as error:
            # The reader says what it stumbled over in whatever class numpy or it raise.
            raise self._refuse("cannot be read", " ".join(str(error).split()) or type(error).__name__) from error
        self._asked: set[str] = set()
        if (parts := self.count("split.count", 1)) > 1:
            raise self._refuse(
                f"is one of {parts} parts", "a model is imported from one file", "merge them with gguf-split"
            )
        self.architecture = self.text("general.architecture")

    def _refuse(
        self, what: str, why: str, remedy: str = "fetch the file again, if it is to be a GGUF file"
    ) -> SourceError:
        return SourceError(f"'{self.path}' {what}", why=why, remedy=remedy)

    # --- metadata ----------------------------------------------------------------------------------------------------

    def own(self, key: str) -> str:
        """A key of the architecture's own: `own("block_count")` may be `llama.block_count`."""
        return f"{self.architecture}.{key}"

    def value(self, key: str, default: Any = None) -> Any:
        """As it is stored: a number, a truth value, a text, or a list of them."""
        field = self._values.get(key)
        try:
            return default if field is None else field.contents()
        except UnicodeDecodeError as error:
            raise self._refuse(f"has no text in '{key}'", str(error)) from error

    def _typed(self, key: str, kind: type[T] | tuple[type, ...], default: T | None, wanted: str) -> T:
        value = self.value(key, default)
        if value is None:
            raise self._refuse(f"lacks '{key}'", f"it must be {wanted}", "convert the model to GGUF again")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self._refuse(f"has '{key}' = {str(value)[:60]}", f"it must be {wanted}", "convert it to GGUF again")
        return value  # type: ignore[return-value]

    def text(self, key: str, default: str | None = None) -> str:
        return self._typed(key, str, default, "a text")

    def number(self, key: str, default: float | None = None) -> float:
        """A finite one, not below 0."""
        number = float(self._typed(key, (int, float), default, "a number"))
        if not (math.isfinite(number) and number >= 0):
            raise self._refuse(f"has '{key}' = {number}", "it must be finite and not negative")
        return number

    def flag(self, key: str, default: bool | None = None) -> bool:
        return self._typed(key, bool, default, "true or false")

    def listed(self, key: str, default: list[Any] | None = None) -> list[Any]:
        return self._typed(key, list, default, "a list")

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number; a list of one and the same, as files have it for each layer, is that number."""
        value = self.value(key, default)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if value is None or isinstance(value, bool) or not isinstance(value, int) or value < 0:
            what = f"lacks '{key}'" if value is None else f"has '{key}' = {str(value)[:60]}"
            raise self._refuse(
                what, "it must be one whole number for all layers", "models of another form are not known"
            )
        return value

    # --- tensors -----------------------------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str, shape: Sequence[int]) -> ReaderTensor:
        """:param shape: rows first. :raises SourceError: missing, or of another shape."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise self._refuse(f"lacks the tensor '{name}'", f"every {self.architecture} model has it")
        found = [int(extent) for extent in reversed(tensor.shape.tolist())]
        if found != list(shape):
            raise self._refuse(f"has '{name}' of shape {found}", f"its metadata say {list(shape)}")
        self._asked.add(name)
        return tensor

    @property
    def tensors(self) -> int:
        """How many there are."""
        return len(self._tensors)

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(int(tensor.n_bytes) for tensor in self._tensors.values())

    def rows_of(self, name: str) -> int:
        """The first extent of a matrix. :raises SourceError: missing, or no matrix."""
        tensor = self._tensors.get(name)
        if tensor is None or len(tensor.shape) != 2:
            raise self._refuse(f"has no matrix '{name}'", f"every {self.architecture} model has it")
        return int(tensor.shape[1])

    def check_all_asked(self) -> None:
        """:raises SourceError: tensors that nobody asked for, so that a part of the model would be left out."""
        left = sorted(self._tensors.keys() - self._asked)
        if left:
            raise self._refuse(
                f"has {len(left)} tensors that are not known of {self.architecture} models",
                f"{', '.join(left[:6])}{', ...' if len(left) > 6 else ''}",
                "models of this form cannot be imported",
            )
