"""Words in memory that several threads read and write, for the decode pool."""

from __future__ import annotations

import llvmlite.ir as ir
from numba import types
from numba.extending import intrinsic

from tokenmill_cpu.features import generated_features

_WORD = ir.IntType(64)


def _pointer(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return builder.inttoptr(address, _WORD.as_pointer())


@intrinsic
def load_word(typing_context, address):
    """`load_word(address) -> int64`, acquiring."""

    def generate(context, builder, signature, values):
        return builder.load_atomic(_pointer(builder, values[0]), "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def store_word(typing_context, address, value):
    """`store_word(address, value)`, releasing."""

    def generate(context, builder, signature, values):
        builder.store_atomic(values[1], _pointer(builder, values[0]), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def add_word(typing_context, address, amount):
    """`add_word(address, amount) -> int64`: the value before."""

    def generate(context, builder, signature, values):
        return builder.atomic_rmw("add", _pointer(builder, values[0]), values[1], "acq_rel")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def exchange_if(typing_context, address, expected, value):
    """`exchange_if(address, expected, value) -> bool`: store `value` if the word is `expected`."""

    def generate(context, builder, signature, values):
        pair = builder.cmpxchg(_pointer(builder, values[0]), values[1], values[2], "acq_rel", "acquire")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


@intrinsic
def pause(typing_context):
    """Tell the core that this is a spinning loop, where there is an instruction for it."""

    def generate(context, builder, signature, values):
        if "sse2" in generated_features():
            name = "llvm.x86.sse2.pause"
            hint = builder.module.globals.get(name)
            hint = hint or ir.Function(builder.module, ir.FunctionType(ir.VoidType(), []), name)
            builder.call(hint, [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def call_kernel(typing_context, kernel, args, thread, threads):
    """`call_kernel(address, args, thread, threads)`."""

    def generate(context, builder, signature, values):
        function = ir.FunctionType(ir.VoidType(), [_WORD, _WORD, _WORD])
        builder.call(builder.inttoptr(values[0], function.as_pointer()), list(values[1:]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), generate
