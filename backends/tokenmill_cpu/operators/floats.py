"""Floats that are computed as float32: an operator widens what it gets and rounds its result once."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tokenmill_cpu.frame import Frame
from tokenmill_cpu.operators.operator import Array, contiguous

FLOAT32 = np.dtype(np.float32)
NARROW = frozenset({np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)})


def is_float(array: Array) -> bool:
    """Whether `widened` takes it."""
    return array.dtype == FLOAT32 or array.dtype in NARROW


def widened(array: Array) -> Array | None:
    """The array as float32 in C order; None when it is of another kind than float32, float16 and bfloat16."""
    dtype = array.dtype
    if dtype == FLOAT32:
        return contiguous(array)
    return array.astype(FLOAT32, order="C") if dtype in NARROW else None


def settled(frame: Frame, array: Array) -> Array | None:
    """`widened`, of an array that launches which wait may have to write."""
    if array.dtype == FLOAT32 and array.flags.c_contiguous and array.flags.aligned:
        return array
    frame.finish()
    return widened(array)


def rounded(frame: Frame, array: Array, dtype: np.dtype[Any]) -> Array:
    """`narrowed`, of an array that launches which wait have to write."""
    if dtype == FLOAT32:
        return array
    frame.finish()
    return array.astype(dtype)


def narrowed(array: Array, dtype: np.dtype[Any]) -> Array:
    """A float32 result in the type that was asked for: itself when that is float32."""
    return array if dtype == FLOAT32 else array.astype(dtype)
