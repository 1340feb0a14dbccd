"""What became of the weights of each type, with the error that rounding made."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import define, field
from gguf import ReaderTensor, dequantize

from tokenmill_strategies.sources.gguf_import.blocks import BLOCK, Blocks, rounds

_ROWS = 4096


@define
class TypeReport:
    """Sums over the tensors of one type and form."""

    tensors: int = 0
    weights: int = 0
    max_error: float = 0.0
    squared_error: float = 0.0
    squared_weights: float = 0.0


@define
class ImportReport:
    """`note` each matrix, then write `as_json`."""

    _types: dict[tuple[str, str], TypeReport] = field(factory=dict)

    def note(self, tensor: ReaderTensor, blocks: Blocks) -> None:
        """Measure one matrix against the file's own weights; those that are carried over are counted only."""
        zero_points = "" if blocks.zero_points is None else f", {blocks.zero_points.dtype.name} zero points"
        target = f"{blocks.bits}-bit blocks of {BLOCK}{zero_points}"
        entry = self._types.setdefault((tensor.tensor_type.name, target), TypeReport())
        entry.tensors += 1
        entry.weights += int(tensor.n_elements)
        if not rounds(tensor.tensor_type):
            return
        for start in range(0, len(tensor.data), _ROWS):
            rows = np.arange(start, min(start + _ROWS, len(tensor.data)))
            weights = np.asarray(dequantize(tensor.data[rows], tensor.tensor_type), np.float64)
            difference = blocks.rows(rows).values() - weights
            largest = np.abs(weights).reshape(-1, BLOCK).max(axis=-1)
            relative = np.abs(difference).reshape(-1, BLOCK).max(axis=-1) / np.where(largest == 0, 1, largest)
            entry.max_error = max(entry.max_error, float(relative.max()))
            entry.squared_error += float(np.square(difference).sum())
            entry.squared_weights += float(np.square(weights).sum())

    def as_json(self) -> list[dict[str, Any]]:
        """An entry a type; `max_error` is relative to the largest weight of the block, `rms_error` to all weights."""
        return [
            {
                "type": name,
                "target": target,
                "tensors": entry.tensors,
                "weights": entry.weights,
                "rounded": entry.squared_weights > 0,
                "max_error": entry.max_error,
                "rms_error": (entry.squared_error / entry.squared_weights) ** 0.5 if entry.squared_weights else 0.0,
            }
            for (name, target), entry in sorted(self._types.items())
        ]
