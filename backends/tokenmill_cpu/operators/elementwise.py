"""Operators on items by themselves, broadcast as numpy does. Types are kept: same in, same out."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np
from tokenmill.contracts.answers import Declined

from tokenmill_cpu.operators.arithmetic import KERNELS, Arithmetic
from tokenmill_cpu.operators.computed import Computed
from tokenmill_cpu.operators.operator import Array, Node, Operator, implements

_FLOATS = frozenset(map(np.dtype, "efd"))
_INTEGERS = frozenset(map(np.dtype, "bhilqBHILQ"))
_NUMBERS = _FLOATS | _INTEGERS
_BOOL = frozenset({np.dtype(bool)})
_BFLOAT16 = frozenset({np.dtype(ml_dtypes.bfloat16)})

Types = frozenset[np.dtype[Any]]


def _unary(function: Callable[..., Any], types: Types) -> Operator:
    def compute(x: Array) -> Any:
        if x.dtype not in types:
            return NotImplemented
        result = function(x)
        # numpy gives a bare number for an array of rank 0.
        return result if type(result) is np.ndarray else np.asarray(result)

    return Computed(compute)


def _binary(function: Callable[..., Any], types: Types) -> Operator:
    def compute(a: Array, b: Array) -> Any:
        if a.dtype not in types or b.dtype is not a.dtype:
            return NotImplemented
        result = function(a, b)
        return result if type(result) is np.ndarray else np.asarray(result)

    return Computed(compute)


def _divide(a: Array, b: Array) -> Any:
    """Integers are divided towards zero."""
    if a.dtype.kind not in "iu":
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    if a.dtype.kind == "u":
        return quotient
    return quotient + ((quotient * b != a) & ((a < 0) != (b < 0)))


def _power(a: Array, b: Array) -> Any:
    """Of exponents, the common 2 is a product."""
    return np.square(a) if b.size == 1 and b.ndim <= a.ndim and b.item() == 2 else np.power(a, b)


_UNARY: dict[str, tuple[Callable[..., Any], Types]] = {
    "Abs": (np.absolute, _NUMBERS),
    "Neg": (np.negative, _NUMBERS | _BFLOAT16),
    "Sqrt": (np.sqrt, _FLOATS),
    "Reciprocal": (np.reciprocal, _FLOATS),
    "Exp": (np.exp, _FLOATS),
    "Log": (np.log, _FLOATS),
    "Cos": (np.cos, _FLOATS),
    "Sin": (np.sin, _FLOATS),
    "Floor": (np.floor, _FLOATS),
    "Ceil": (np.ceil, _FLOATS),
    "Round": (np.rint, _FLOATS),
    "Sign": (np.sign, _NUMBERS),
    "IsNaN": (np.isnan, _FLOATS),
    "Not": (np.logical_not, _BOOL),
    "BitwiseNot": (np.bitwise_not, _INTEGERS),
}

#: Before opset 7, operands were broadcast only on request and by other rules.
_BINARY: dict[str, tuple[Callable[..., Any], Types]] = {
    "Add": (np.add, _NUMBERS | _BFLOAT16),
    "Sub": (np.subtract, _NUMBERS | _BFLOAT16),
    "Mul": (np.multiply, _NUMBERS | _BFLOAT16),
    "Div": (_divide, _NUMBERS | _BFLOAT16),
    "Pow": (_power, _FLOATS),
    "Equal": (np.equal, _NUMBERS | _BOOL),
    "Greater": (np.greater, _NUMBERS),
    "GreaterOrEqual": (np.greater_equal, _NUMBERS),
    "Less": (np.less, _NUMBERS),
    "LessOrEqual": (np.less_equal, _NUMBERS),
    "And": (np.logical_and, _BOOL),
    "Or": (np.logical_or, _BOOL),
    "Xor": (np.logical_xor, _BOOL),
    "BitwiseAnd": (np.bitwise_and, _INTEGERS),
    "BitwiseOr": (np.bitwise_or, _INTEGERS),
    "BitwiseXor": (np.bitwise_xor, _INTEGERS),
}

#: Of any number of inputs. NaN wins.
_MANY: dict[str, tuple[Callable[..., Any], Types]] = {
    "Min": (np.minimum, _NUMBERS),
    "Max": (np.maximum, _NUMBERS),
    "Sum": (np.add, _FLOATS),
}


@implements("", *_UNARY)
def _prepare_unary(node: Node) -> Operator:
    return _unary(*_UNARY[node.instruction.operator])


@implements("", *_BINARY, since=7)
def _prepare_binary(node: Node) -> Operator:
    plain = _binary(*_BINARY[node.instruction.operator])
    return Arithmetic(node, plain) if node.instruction.operator in KERNELS else plain


@implements("", *_MANY, since=8)
def _prepare_many(node: Node) -> Operator:
    function, types = _MANY[node.instruction.operator]
    if len(node.instruction.inputs) == 1:
        return Computed(lambda x: x)

    def compute(*arrays: Array) -> Any:
        first = arrays[0].dtype
        if first not in types or any(array.dtype is not first for array in arrays):
            return NotImplemented
        result = reduce(function, arrays)
        return result if type(result) is np.ndarray else np.asarray(result)

    return Computed(compute)


@implements("", "Clip", since=11)
def _clip(node: Node) -> Operator:
    def clip(x: Array, low: Array | None = None, high: Array | None = None) -> Any:
        if x.dtype not in _NUMBERS:
            return NotImplemented
        if low is not None:
            x = np.maximum(x, low)
        # Where the bounds cross, the upper one holds.
        return np.asarray(x if high is None else np.minimum(x, high))

    return Computed(clip)


@implements("", "Mod")
def _mod(node: Node) -> Operator | Declined:
    if node.attributes.get("fmod", 0):
        return _binary(np.fmod, _NUMBERS)
    return _binary(np.mod, _INTEGERS)
