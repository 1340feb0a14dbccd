"""Arithmetic of large float32 arrays. For small ones, and for other ways to broadcast, numpy is as fast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenmill_cpu.frame import Frame
from tokenmill_cpu.kernels.arithmetic import add, divide, multiply, subtract
from tokenmill_cpu.operators.floats import FLOAT32
from tokenmill_cpu.operators.operator import Array, Node, Operator

KERNELS = {"Add": add, "Sub": subtract, "Mul": multiply, "Div": divide}

#: Items from which a kernel is faster than numpy, and a width at which its rows are not all head and tail.
_WORTH = 4096
_WIDE = 64


class Arithmetic(Operator):
    """Rows with rows, with one row for all, with one number for each row, or with one for all.

    :param plain: computes everything else. Where both can, their results are equal.
    """

    queues = True

    def __init__(self, node: Node, plain: Operator) -> None:
        self._kernel = KERNELS[node.instruction.operator]
        node.address_of(self._kernel)
        self._plain = plain

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        a, b = inputs
        largest = a if a.size >= b.size else b
        worth = largest.size >= _WORTH or (frame.waits and largest.size >= _WIDE)
        if not worth or a.dtype is not FLOAT32 or b.dtype is not FLOAT32:
            frame.finish()
            return self._plain.run(frame, inputs)
        shape, width = largest.shape, largest.shape[-1]
        a_steps, b_steps = _steps(a, shape), _steps(b, shape)
        if a_steps is None or b_steps is None or width < _WIDE:
            frame.finish()
            return self._plain.run(frame, inputs)
        y = np.empty(shape, FLOAT32)
        rows = largest.size // width
        parts = frame.parts(y.size, rows)
        frame.launch(self._kernel, parts, frame.hold(a), frame.hold(b), frame.hold(y), rows, width, *a_steps, *b_steps)
        return (y,)


def _steps(array: Array, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Bytes from row to row, and whether a row is one item for all; None when it broadcasts in another way."""
    given, width = array.shape, shape[-1]
    if not (array.flags.c_contiguous and array.flags.aligned) or len(given) > len(shape):
        return None
    if given == shape:
        return 4 * width, 0
    if array.size == 1:
        return 0, 1
    if array.size == width and given[-1] == width:
        return 0, 0
    if given[:-1] == shape[:-1] and given[-1] == 1:
        return 4, 1
    return None
