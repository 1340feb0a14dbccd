"""Vectors of 16 float32 as values in compiled code.

`F32x16` is a numba type: kernels hold its values in variables, pass them to functions and add, subtract and multiply them.
16 items whatever the processor has: LLVM splits or fills its registers. Addresses are bytes, as integers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

LANES = 16
#: Bytes of a vector.
WIDTH = 4 * LANES

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
FLOATS = ir.VectorType(F32, LANES)
INTEGERS = ir.VectorType(I32, LANES)


class _F32x16(types.Type):
    def __init__(self) -> None:
        super().__init__(name="f32x16")


F32x16 = _F32x16()


@register_model(_F32x16)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, FLOATS)


# What generates code, for this module and others.


def load(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    """A value at an address of any alignment."""
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = 1
    return value


def store(builder: ir.IRBuilder, value: ir.Value, address: ir.Value) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 1


def shuffle(builder: ir.IRBuilder, first: ir.Value, second: ir.Value, order: list[int]) -> ir.Value:
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(I32, len(order)), order))


def splat(builder: ir.IRBuilder, item: ir.Value) -> ir.Value:
    empty = ir.Constant(ir.VectorType(item.type, LANES), ir.Undefined)
    return shuffle(builder, builder.insert_element(empty, item, ir.Constant(I32, 0)), empty, [0] * LANES)


def constant(item: float | int, kind: ir.VectorType = FLOATS) -> ir.Constant:
    return ir.Constant(kind, [item] * kind.count)


def llvm(builder: ir.IRBuilder, name: str, arguments: list[ir.Value], result: ir.Type = FLOATS) -> ir.Value:
    """Call a function that LLVM defines."""
    module = builder.module
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, ir.FunctionType(result, [argument.type for argument in arguments]), name)
    return builder.call(function, arguments)


def multiply_add(builder: ir.IRBuilder, factor: ir.Value, value: ir.Value, total: ir.Value) -> ir.Value:
    """`factor * value + total`, fused where the processor can: `fmuladd` never calls a library."""
    return llvm(builder, "llvm.fmuladd.v16f32", [factor, value, total])


def load_floats(builder: ir.IRBuilder, address: ir.Value, kind: str) -> ir.Value:
    """16 items of kind `f32` or `f16`, widened."""
    if kind == "f32":
        return load(builder, address, FLOATS)
    return builder.fpext(load(builder, address, ir.VectorType(F16, LANES)), FLOATS)


def prefetch_lines(builder: ir.IRBuilder, address: ir.Value, lines: int) -> None:
    """Fetch cache lines that are read soon, and once."""
    for line in range(lines):
        place = builder.inttoptr(builder.add(address, ir.Constant(I64, 64 * line)), I8.as_pointer())
        hints = [ir.Constant(I32, number) for number in (0, 3, 1)]
        llvm(builder, "llvm.prefetch.p0", [place, *hints], ir.VoidType())


# What kernels call.


def _operation(count: int, generate: Callable[..., ir.Value]) -> Any:
    """A function of so many vectors that gives one."""

    def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        return generate(builder, *values)

    if count == 1:
        return intrinsic(lambda typing_context, x: (F32x16(F32x16), lower))
    if count == 2:
        return intrinsic(lambda typing_context, a, b: (F32x16(F32x16, F32x16), lower))
    return intrinsic(lambda typing_context, a, b, c: (F32x16(F32x16, F32x16, F32x16), lower))


_add = _operation(2, lambda builder, a, b: builder.fadd(a, b))
_subtract = _operation(2, lambda builder, a, b: builder.fsub(a, b))
_multiply = _operation(2, lambda builder, a, b: builder.fmul(a, b))
_divide = _operation(2, lambda builder, a, b: builder.fdiv(a, b))
_negate = _operation(1, lambda builder, x: builder.fneg(x))

#: `fma(a, b, c)`: a * b + c.
fma = _operation(3, multiply_add)
#: The larger and the smaller item; NaN in either gives NaN.
largest = _operation(2, lambda builder, a, b: llvm(builder, "llvm.maximum.v16f32", [a, b]))
smallest = _operation(2, lambda builder, a, b: llvm(builder, "llvm.minimum.v16f32", [a, b]))
absolute = _operation(1, lambda builder, x: llvm(builder, "llvm.fabs.v16f32", [x]))
#: To the nearest integer, halves to the even one.
rounded = _operation(1, lambda builder, x: llvm(builder, "llvm.roundeven.v16f32", [x]))


def _power_of_two(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    exponent = builder.add(builder.fptosi(x, INTEGERS), constant(127, INTEGERS))
    return builder.bitcast(builder.shl(exponent, constant(23, INTEGERS)), FLOATS)


#: 2 to the power of whole numbers from -126 to 127.
power_of_two = _operation(1, _power_of_two)
#: Where `a` is NaN, `a`; elsewhere `b`.
keep_nan = _operation(2, lambda builder, a, b: builder.select(builder.fcmp_unordered("uno", a, a), a, b))


def _choose(builder: ir.IRBuilder, a: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered("<", a, constant(0.0)), x, y)


#: Where `a` is below zero, `x`; elsewhere, and where `a` is NaN, `y`.
where_negative = _operation(3, _choose)


def _overload(python: Callable[..., Any], vector: Any) -> None:
    @overload(python)
    def choose(a, b):
        return (lambda a, b: vector(a, b)) if a is F32x16 and b is F32x16 else None


_overload(operator.add, _add)
_overload(operator.sub, _subtract)
_overload(operator.mul, _multiply)
_overload(operator.truediv, _divide)


@overload(operator.neg)
def _negated(x):
    return (lambda x: _negate(x)) if x is F32x16 else None


@intrinsic
def splat_number(typing_context, number):
    """`splat_number(x)`: 16 times a float32."""

    def lower(context, builder, signature, values):
        return splat(builder, values[0])

    return F32x16(types.float32), lower


@intrinsic
def load_f32(typing_context, address):
    """`load_f32(address)`: 16 items."""

    def lower(context, builder, signature, values):
        return load(builder, values[0], FLOATS)

    return F32x16(types.int64), lower


@intrinsic
def load_f16(typing_context, address):
    """`load_f16(address)`: 16 items of float16, widened."""

    def lower(context, builder, signature, values):
        return load_floats(builder, values[0], "f16")

    return F32x16(types.int64), lower


@intrinsic
def store_f32(typing_context, address, vector):
    """`store_f32(address, vector)`."""

    def lower(context, builder, signature, values):
        store(builder, values[1], values[0])
        return context.get_dummy_value()

    return types.void(types.int64, F32x16), lower


@intrinsic
def load_first(typing_context, address, count, filler):
    """`load_first(address, count, x)`: `count` items, and `x` in the other lanes."""

    def lower(context, builder, signature, values):
        address, count, filler = values
        buffer = cgutils.alloca_once_value(builder, splat(builder, filler))
        target = builder.ptrtoint(buffer, I64)
        with cgutils.for_range(builder, count) as loop:
            offset = builder.mul(loop.index, ir.Constant(I64, 4))
            store(builder, load(builder, builder.add(address, offset), F32), builder.add(target, offset))
        return load(builder, target, FLOATS)

    return F32x16(types.int64, types.int64, types.float32), lower


@intrinsic
def store_first(typing_context, address, count, vector):
    """`store_first(address, count, vector)`: its first `count` items."""

    def lower(context, builder, signature, values):
        address, count, vector = values
        source = builder.ptrtoint(cgutils.alloca_once_value(builder, vector), I64)
        with cgutils.for_range(builder, count) as loop:
            offset = builder.mul(loop.index, ir.Constant(I64, 4))
            store(builder, load(builder, builder.add(source, offset), F32), builder.add(address, offset))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, F32x16), lower


def _folded(combine: Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value]) -> Any:
    """Combine halves, quarters, and so on: an order that no processor changes."""

    @intrinsic
    def fold(typing_context, vector):
        def lower(context, builder, signature, values):
            (vector,) = values
            for distance in (8, 4, 2, 1):
                order = [(lane + distance) % LANES for lane in range(LANES)]
                vector = combine(builder, vector, shuffle(builder, vector, vector, order))
            return builder.extract_element(vector, ir.Constant(I32, 0))

        return types.float32(F32x16), lower

    return fold


#: Sum of the 16 items, and the largest of them.
sum_of = _folded(lambda builder, a, b: builder.fadd(a, b))
largest_of = _folded(lambda builder, a, b: llvm(builder, "llvm.maximum.v16f32", [a, b]))


def _scalar(kind: ir.Type, python: Any) -> tuple[Any, Any]:
    """Functions that read and write one item; a float16 is a float32 for the kernel, an unsigned integer an int64."""

    @intrinsic
    def read(typing_context, address):
        def lower(context, builder, signature, values):
            value = load(builder, values[0], kind)
            if kind is F16:
                return builder.fpext(value, F32)
            return builder.zext(value, I64) if kind is not I64 and python is types.int64 else value

        return python(types.int64), lower

    @intrinsic
    def write(typing_context, address, value):
        def lower(context, builder, signature, values):
            value = values[1]
            if kind is F16:
                value = builder.fptrunc(value, F16)
            elif kind is not I64 and python is types.int64:
                value = builder.trunc(value, kind)
            store(builder, value, values[0])
            return context.get_dummy_value()

        return types.void(types.int64, python), lower

    return read, write


read_f32, write_f32 = _scalar(F32, types.float32)
read_f16, write_f16 = _scalar(F16, types.float32)
read_u32, write_u32 = _scalar(I32, types.int64)
_, write_i32 = _scalar(I32, types.int32)
read_i64, _ = _scalar(I64, types.int64)
