"""Rows of an output: logits and hidden states as exporters shape them, as float32 on the host."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tokenmill.contracts.backend import Value
from tokenmill.contracts.step import Step
from tokenmill.errors import NonFiniteError, OutputError

Rows = npt.NDArray[np.float32]

_FLOATS = frozenset(map(np.dtype, (np.float32, np.float16, ml_dtypes.bfloat16)))


def output_rows(name: str, value: Value, step: Step) -> npt.NDArray[Any]:
    """An output of the first sequence as `[rows, width]`, in its own type and without a copy where that is possible.

    :param value: `[width]`, `[rows, width]` or `[batch, rows, width]`; rows are the step's, or 1: the last one's.
    :raises OutputError: another rank, an extent of 0, another number of rows, or a type that is no float of 16 or 32 bits.
    """
    array = value.numpy()
    if not isinstance(array, np.ndarray) or array.dtype not in _FLOATS:
        found = array.dtype.name if isinstance(array, np.ndarray) else type(array).__name__
        raise OutputError(
            f"output '{name}' is {found}",
            why="float32, float16 or bfloat16 is needed",
            remedy="export it in one of these types, or correct its role in model.io",
        )
    if not 1 <= array.ndim <= 3 or 0 in array.shape:
        raise OutputError(
            f"output '{name}' has the shape {list(array.shape)}",
            why="[width], [rows, width] or [batch, rows, width] is needed, without an extent of 0",
            remedy="correct its role in model.io, or export it in one of these shapes",
        )
    rows = array[0] if array.ndim == 3 else array.reshape(-1, array.shape[-1])
    if len(rows) not in (1, step.rows):
        raise OutputError(
            f"output '{name}' has {len(rows)} rows {list(array.shape)}",
            why=f"the step has {step.rows}; every row, or the last one alone, is needed",
        )
    return rows


def all_rows(name: str, rows: npt.NDArray[Any], step: Step) -> Rows:
    """Every row of the logits, `[rows, vocab] float32`, the caller's own.

    :raises OutputError: the graph yields the last row alone.
    :raises NonFiniteError: NaN or infinity in any of them.
    """
    if len(rows) != step.rows:
        raise OutputError(
            f"a row of '{name}' for each of {step.rows} tokens is wanted, and there is 1",
            why="the graph computes the last token's logits alone",
            remedy='ask for "last" or "token", feed one token at a time, or export logits for every token',
        )
    wanted = np.array(rows, dtype=np.float32)
    _check_finite(name, wanted, step)
    return wanted


def last_row(name: str, rows: npt.NDArray[Any], step: Step) -> Rows:
    """The last row of the logits, `[vocab] float32`, the caller's own. :raises NonFiniteError: NaN or infinity in it."""
    wanted = np.array(rows[-1], dtype=np.float32)
    _check_finite(name, wanted, step)
    return wanted


def best_token(name: str, rows: npt.NDArray[Any], step: Step) -> int:
    """The highest logit's index in the last row, the lowest one of equals. :raises NonFiniteError: NaN or infinity in it."""
    wanted = rows[-1].astype(np.float32, copy=False)
    _check_finite(name, wanted, step)
    return int(wanted.argmax())


def _check_finite(name: str, values: Rows, step: Step) -> None:
    # NaN propagates through both reductions, which are several times faster than testing each element.
    if np.isfinite(values.min()) and np.isfinite(values.max()):
        return
    lines = np.atleast_2d(values)
    bad = ~np.isfinite(lines)
    first = int(bad.any(axis=1).argmax()) + step.mask_length - len(lines)
    token = int(step.tokens[0, first - step.position_start])
    raise NonFiniteError(
        f"output '{name}' holds {int(bad.sum())} values that are NaN or infinite, first in the row of position {first} "
        f"(token {token})",
        why="weights that are not finite, or a 16-bit type that overflows",
        remedy="check the model's weights, or export it in float32",
    )
