"""Changing the type of an array's items."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir
from tokenmill.contracts.answers import Declined

from tokenmill_cpu.operators.computed import Computed, is_native
from tokenmill_cpu.operators.operator import Array, Node, Operator, implements

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FLOAT32 = np.dtype(np.float32)


def _converted(x: Array, target: np.dtype[Any]) -> Array:
    """Rounded to nearest even where it must be, out of range as numpy and the machine do; the rest is left."""
    source = x.dtype
    if source is target:
        return x
    if is_native(x) and target is not _BFLOAT16:
        return x.astype(target)
    if (source is _FLOAT32 and target is _BFLOAT16) or (source is _BFLOAT16 and target is _FLOAT32):
        return x.astype(target)
    return NotImplemented


def _takes(target: np.dtype[Any]) -> bool:
    return target is _BFLOAT16 or target.char in "fqilebhHBILQd?"


@implements("", "Cast", since=6)
def _cast(node: Node) -> Operator | Declined:
    kind = onnx_ir.DataType(node.attributes["to"])
    if kind.name == "STRING" or not _takes(np.dtype(kind.numpy())):
        return Declined(f"it does not cast to {kind.name}")
    target = np.dtype(kind.numpy())
    return Computed(lambda x: _converted(x, target))


@implements("", "CastLike")
def _cast_like(node: Node) -> Operator:
    return Computed(lambda x, like: _converted(x, like.dtype) if _takes(like.dtype) else NotImplemented)
