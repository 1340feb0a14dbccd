"""Kernels: compiled functions of one signature that read an argument block.

`kernel(args, thread, threads)`: `args` is the address of 64-bit words, of which word 0 is the address of the error word and
the following ones are the kernel's own integers, addresses and float64 numbers; `thread` of `threads` says which part of the
work this call does. Parts write to disjoint memory, and what a part computes does not depend on how many there are.

A launch is such a function with such a block. Because neither needs Python, a list of launches is a step that can be replayed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cached_property
from typing import Any

import llvmlite.ir as ir
from numba import cfunc, njit, types
from numba.extending import intrinsic

from tokenmill_cpu.kernel_cache import compiling

SIGNATURE = types.void(types.int64, types.int64, types.int64)

#: `contract` alone: further freedoms fold `isfinite` to true and make results depend on how loops were vectorized.
FLAGS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}, "boundscheck": False}

# Bits of the error word.
NON_FINITE_INPUT = 1
INDEX_OUT_OF_RANGE = 2


def device(function: Callable[..., Any]) -> Any:
    """A function that kernels call."""
    return njit(function, nogil=True, **FLAGS)


def inlined(function: Callable[..., Any]) -> Any:
    """A function that kernels call in an inner loop: LLVM always inlines it."""
    return njit(function, nogil=True, forceinline=True, **FLAGS)


class Kernel:
    """A kernel that is compiled, or loaded from the cache, when its address is first asked for.

    :param words: what its block holds behind the error word: `q` an integer or address, `d` a float64.
    """

    def __init__(self, function: Callable[[int, int, int], None], words: str) -> None:
        self.name = function.__name__
        self._function = function
        self._compiled: Any = None
        block = struct.Struct("=q" + words)
        self.pack_into = block.pack_into
        self.block_bytes = block.size

    @property
    def compiled(self) -> bool:
        return self._compiled is not None

    @cached_property
    def address(self) -> int:
        """Address of the machine code."""
        if self._compiled is None:
            with compiling() as cached:
                if self._compiled is None:
                    self._compiled = cfunc(SIGNATURE, cache=cached, **FLAGS)(self._function)
        return int(self._compiled.address)


def kernel(words: str) -> Callable[[Callable[[int, int, int], None]], Kernel]:
    """Declare a kernel. `words` describes its block: see `Kernel`."""
    return lambda function: Kernel(function, words)


@intrinsic
def word(typing_context, args, position):
    """`word(args, i) -> int64`: the block's word `i`."""

    def generate(context, builder, signature, values):
        return builder.load(_at(builder, values[0], values[1], ir.IntType(64)))

    return types.int64(types.int64, types.int64), generate


@intrinsic
def number(typing_context, args, position):
    """`number(args, i) -> float64`: the block's word `i`."""

    def generate(context, builder, signature, values):
        return builder.load(_at(builder, values[0], values[1], ir.DoubleType()))

    return types.float64(types.int64, types.int64), generate


def _at(builder: ir.IRBuilder, base: ir.Value, position: ir.Value, element: ir.Type) -> ir.Value:
    offset = builder.mul(position, ir.Constant(ir.IntType(64), 8))
    return builder.inttoptr(builder.add(base, offset), element.as_pointer())


@intrinsic
def report(typing_context, args, flags):
    """`report(args, flags)`: set bits of the error word."""

    def generate(context, builder, signature, values):
        integer = ir.IntType(64)
        target = builder.load(builder.inttoptr(values[0], integer.as_pointer()))
        builder.atomic_rmw("or", builder.inttoptr(target, integer.as_pointer()), values[1], "monotonic")
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate
