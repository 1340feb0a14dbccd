"""Operators that are numpy functions, against onnxruntime: shapes of every rank, empty ones, negative axes, all types.

Results have equal bits, but for functions that two libraries approximate and sums that they order differently.
"""

from __future__ import annotations

from zlib import crc32

import ml_dtypes
import numpy as np
import pytest
from onnx import numpy_helper
from single_node import falls_back, in_onnxruntime, on_cpu

#: Approximations of float32 functions are a few units in the last place off, and sums of up to 60 items some more.
TOLERANCE = {"rtol": 4e-6, "atol": 1e-6}
LAST = np.iinfo(np.int64).max


def generator(*seed):
    return np.random.default_rng(crc32(repr(seed).encode()))


def values(*shape, dtype=np.float32, seed=0):
    """Floats of both signs, integers down to -20 or 0, or booleans."""
    rng, dtype = generator(shape, np.dtype(dtype).name, seed), np.dtype(dtype)
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) > 0.5)
    if dtype.kind in "iu":
        return np.asarray(rng.integers(0 if dtype.kind == "u" else -20, 21, shape)).astype(dtype)
    return np.asarray(rng.standard_normal(shape) * 3).astype(dtype)


def int64(*items):
    return np.array(items, np.int64)


def scalar(item, dtype=np.int64):
    return np.array(item, dtype)


def agrees(operator, inputs, *others, close=False, **more):
    """Our operator, not the host's, gives onnxruntime's types, shapes and values."""
    inputs = [value if value is None else np.asarray(value) for value in inputs]
    found, expected = on_cpu(operator, inputs, *others, **more), in_onnxruntime(operator, inputs, *others, **more)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert isinstance(ours, np.ndarray) and ours.dtype == theirs.dtype and ours.shape == theirs.shape
        if close:
            np.testing.assert_allclose(ours, theirs, **TOLERANCE)
        else:
            np.testing.assert_array_equal(ours, theirs)


# --- elementwise -----------------------------------------------------------------------------------------------------

SHAPES = [(), (0, 3), (1,), (2, 3, 5)]
PAIRS = [((), ()), ((2, 3), ()), ((2, 3), (3,)), ((3,), (2, 3)), ((2, 1, 3), (4, 1)), ((0, 3), (1, 3)), ((2, 0), (1,))]
SIGNED = [np.float32, np.int32, np.int64]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("operator", ["Exp", "Log", "Sqrt", "Sin", "Cos", "Reciprocal"])
def test_functions(operator, shape):
    x = values(*shape)
    agrees(operator, [abs(x) if operator in ("Log", "Sqrt") else x], close=True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("operator", ["Abs", "Neg", "Sign"])
@pytest.mark.parametrize("dtype", SIGNED)
def test_signs(operator, shape, dtype):
    agrees(operator, [values(*shape, dtype=dtype)])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("operator", ["Floor", "Ceil", "Round"])
def test_rounding(operator, shape):
    agrees(operator, [np.asarray(np.rint(values(*shape) * 4) / 2, np.float32)])


@pytest.mark.parametrize("shape", SHAPES)
def test_not_of_bits_and_booleans(shape):
    agrees("Not", [values(*shape, dtype=bool)])
    agrees("BitwiseNot", [values(*shape, dtype=np.int32)])
    agrees("BitwiseNot", [values(*shape, dtype=np.uint8)])


def test_what_is_no_number():
    agrees("IsNaN", [np.array([1, np.nan, np.inf, -np.inf], np.float32)])
    agrees("Neg", [np.array([np.nan, np.inf, 0.0], np.float32)])


@pytest.mark.parametrize("shapes", PAIRS)
@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("dtype", [*SIGNED, np.float64])
def test_arithmetic(operator, shapes, dtype):
    a, b = (values(*shape, dtype=dtype, seed=index) for index, shape in enumerate(shapes))
    agrees(operator, [a, np.where(b == 0, dtype(7), b) if operator == "Div" else b])


def test_integers_are_divided_towards_zero():
    a, b = np.meshgrid(np.arange(-7, 8), [-3, -2, -1, 1, 2, 3])
    agrees("Div", [a, b])
    agrees("Div", [a.astype(np.int32), b.astype(np.int32)])
    agrees("Div", [abs(a).astype(np.uint32), abs(b).astype(np.uint32)])
    agrees("Mod", [a, b])
    agrees("Mod", [a, b], {"fmod": 1})
    agrees("Mod", [values(4, 5), values(5, seed=1)], {"fmod": 1})


@pytest.mark.parametrize("shapes", PAIRS)
@pytest.mark.parametrize("operator", ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
@pytest.mark.parametrize("dtype", SIGNED)
def test_comparisons(operator, shapes, dtype):
    a, b = (np.rint(values(*shape, seed=index)).astype(dtype) for index, shape in enumerate(shapes))
    agrees(operator, [np.asarray(a), np.asarray(b)])


@pytest.mark.parametrize("shapes", PAIRS)
def test_logic(shapes):
    for operator in ("And", "Or", "Xor", "Equal"):
        agrees(operator, [values(*shape, dtype=bool, seed=index) for index, shape in enumerate(shapes)])
    for operator in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        agrees(operator, [values(*shape, dtype=np.int64, seed=index) for index, shape in enumerate(shapes)])


@pytest.mark.parametrize("exponent", [2.0, 0.5, 3.0, -1.0, 0.0])
@pytest.mark.parametrize("constants", [(), (1,)])
def test_powers(exponent, constants):
    for base in (abs(values(2, 3)), np.array(2.5, np.float32)):
        agrees("Pow", [base, np.array(exponent, np.float32)], constants=constants, close=True)
    agrees("Pow", [abs(values(3)), np.full((2, 1), exponent, np.float32)], constants=constants, close=True)


@pytest.mark.parametrize("operator", ["Min", "Max", "Sum"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_of_many(operator, count):
    inputs = [values(*shape, seed=index) for index, shape in enumerate([(2, 3), (3,), (4, 1, 1)][:count])]
    agrees(operator, inputs)
    agrees(operator, [np.array(value[..., :1]).reshape(()) for value in (values(1, seed=i) for i in range(count))])
    if operator != "Sum":
        agrees(operator, [values(2, 3, dtype=np.int64, seed=index) for index in range(count)])


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (None, 1), (-1, None), (None, None), (2, -2)])
@pytest.mark.parametrize("shape", SHAPES)
def test_clip(shape, low, high):
    for dtype in (np.float32, np.int64):
        bounds = [None if bound is None else np.array(bound, dtype) for bound in (low, high)]
        agrees("Clip", [values(*shape, dtype=dtype), *bounds])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("operator", [np.add, np.subtract, np.multiply, np.divide])
def test_floats_of_16_bits_are_rounded_once(operator, dtype):
    """Against float64: its result, rounded to the type, is the nearest one but for double rounding in float32."""
    name = {"add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div"}[operator.__name__]
    a, b = values(50, dtype=dtype), values(50, dtype=dtype, seed=1)
    (found,) = on_cpu(name, [a, b])
    assert found.dtype == a.dtype
    exact = operator(a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_array_equal(found, exact.astype(np.float32).astype(dtype))


# --- casts -----------------------------------------------------------------------------------------------------------

ONNX_TYPES = {
    np.float32: 1, np.uint8: 2, np.int8: 3, np.int32: 6, np.int64: 7, np.bool_: 9, np.float16: 10, np.float64: 11,
}  # fmt: skip


@pytest.mark.parametrize("target", list(ONNX_TYPES))
@pytest.mark.parametrize("source", list(ONNX_TYPES))
def test_casts(source, target):
    # Not negative: what a negative float is as an unsigned integer is for nobody to say.
    x = abs(values(2, 5, dtype=source)) if source is not np.bool_ else values(2, 5, dtype=bool)
    agrees("Cast", [x], {"to": ONNX_TYPES[target]})
    agrees("Cast", [x[0, 0].reshape(())], {"to": ONNX_TYPES[target]})
    agrees("Cast", [x[:0]], {"to": ONNX_TYPES[target]})
    agrees("CastLike", [x, values(1, dtype=target)])


def test_bfloat16_there_and_back():
    x = np.array([1.00390625, 1.01171875, -3e38, 1e-40, np.inf], np.float32)
    (small,) = on_cpu("Cast", [x], {"to": 16})
    assert small.dtype == np.dtype(ml_dtypes.bfloat16)
    assert small[:2].astype(np.float32).tolist() == [1.0, 1.015625], "ties go to even"
    (back,) = on_cpu("Cast", [small], {"to": 1})
    assert back.dtype == np.float32 and np.array_equal(back, small.astype(np.float32))


# --- parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("constants", [(), (1,)])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_gather(axis, constants):
    x = values(3, 4, 5)
    for indices in (scalar(1), scalar(-1), int64(2, 0, -3), np.zeros((0,), np.int64), np.array([[0, 1], [-1, 2]])):
        agrees("Gather", [x, indices], {"axis": axis}, constants=constants)
    agrees("Gather", [values(4), scalar(-2)], constants=constants)
    agrees("Gather", [x, np.array([2, 0], np.int32)], {"axis": axis}, constants=constants)
    agrees("Gather", [values(5, 4, 3).T, int64(2, 0, -3)], {"axis": axis})


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_elements_are_gathered_and_scattered(axis):
    x = values(4, 5)
    # Different indices along the axis: which of two updates of one place wins is for nobody to say.
    indices = np.argsort(values(4, 5, seed=1), axis=axis)[:3, :4]
    indices = np.where(indices % 2, indices, indices - x.shape[axis])
    agrees("GatherElements", [x, indices], {"axis": axis})
    agrees("ScatterElements", [x, indices, values(3, 4, seed=2)], {"axis": axis})


def test_gathered_and_scattered_by_coordinates():
    x = values(3, 4, 5)
    for indices in (np.array([[0, 1], [2, -1]]), np.array([[[1]], [[0]]]), np.array([1, 2, 3]), np.array([[2, 3, 4]])):
        agrees("GatherND", [x, indices])
        updates = values(*indices.shape[:-1], *x.shape[indices.shape[-1] :], seed=3)
        before = x.copy()
        agrees("ScatterND", [x, indices, updates])
        assert np.array_equal(x, before)


SLICES = [
    ([1], [3], [0], None), ([0, -2], [LAST, LAST], [0, 1], None), ([-1], [-LAST], [1], [-1]), ([3], [0], [-1], [-2]),
    ([5], [9], [0], None), ([1, 1], [2, 3], None, None), ([-100], [100], [2], [3]), ([2], [2], [0], [1]),
]  # fmt: skip


@pytest.mark.parametrize("constants", [(), (1, 2), (1, 2, 3, 4)])
@pytest.mark.parametrize(("starts", "ends", "axes", "steps"), SLICES)
def test_slice(starts, ends, axes, steps, constants):
    given = [None if items is None else np.array(items) for items in (starts, ends, axes, steps)]
    known = tuple(index for index in constants if given[index - 1] is not None)
    agrees("Slice", [values(4, 4, 6), *given], constants=known)
    agrees("Slice", [values(4, 4, 6), *(None if v is None else v.clip(-99, 99).astype(np.int32) for v in given)])
    if steps is None:
        attributes = {"starts": starts, "ends": ends, **({"axes": axes} if axes else {})}
        agrees("Slice", [values(4, 4, 6)], attributes, version=9)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_split(axis):
    x, three = values(6, 6), (True,) * 3
    agrees("Split", [x, int64(1, 3, 2)], {"axis": axis}, three)
    agrees("Split", [x, int64(1, 0, 5)], {"axis": axis}, three, constants=(1,))
    agrees("Split", [x], {"axis": axis, "num_outputs": 3}, three)
    agrees("Split", [values(7, 7)], {"axis": axis, "num_outputs": 3}, three)
    agrees("Split", [x], {"axis": axis, "split": [2, 1, 3]}, three, version=11)
    agrees("Split", [x], {"axis": axis}, three, version=13)


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_concat(axis, count):
    shapes = [(2, 2), (2, 2), (2, 2)][:count]
    agrees("Concat", [values(*shape, seed=index) for index, shape in enumerate(shapes)], {"axis": axis})
    empty = (0, 2) if axis in (0, -2) else (2, 0)
    agrees("Concat", [values(*empty), *(values(2, 2, seed=index) for index in range(count))], {"axis": axis})
    agrees("Concat", [values(2, 2, dtype=np.int64, seed=index) for index in range(count)], {"axis": axis})


@pytest.mark.parametrize("shapes", [((), (), ()), ((2, 1), (3,), ()), ((4, 1, 1), (2, 1), (3,)), ((0,), (), (1,))])
def test_where(shapes):
    condition, *choices = (values(*shape, dtype=kind) for shape, kind in zip(shapes, (bool, "f4", "f4"), strict=True))
    agrees("Where", [condition, *choices])
    agrees("Where", [condition, *(choice.astype(np.int64) for choice in choices)])


# --- reductions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [None, [0], [1], [-1], [0, -1], [0, 1, 2], [2, 0]])
@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"])
def test_reductions(operator, axes, keepdims):
    x, given, attributes = values(3, 4, 5), [] if axes is None else [np.array(axes)], {"keepdims": keepdims}
    agrees(operator, [x, *given], attributes, close=True)
    agrees(operator, [x, *given], attributes, constants=(1,) if given else (), close=True)
    as_attribute = attributes if axes is None else {**attributes, "axes": axes}
    agrees(operator, [x], as_attribute, version=11, close=True)
    if operator != "ReduceMean":
        agrees(operator, [x.astype(np.int64), *given], attributes)


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"])
def test_reductions_of_nothing_along_no_axis(operator):
    agrees(operator, [values(2, 3), np.zeros(0, np.int64)], {"noop_with_empty_axes": 1})
    agrees(operator, [values(2, 3), np.zeros(0, np.int64)], close=True)
    agrees(operator, [values()], {"keepdims": 0})


@pytest.mark.parametrize(("operator", "function"), [("ReduceSum", np.sum), ("ReduceMean", np.mean)])
def test_halves_are_summed_in_float32_and_rounded_once(operator, function):
    x = values(3, 2000, dtype=np.float16)
    (found,) = on_cpu(operator, [x, int64(-1)])
    exact = function(x.astype(np.float64), axis=-1, keepdims=True)
    # Half a unit in the last of 11 bits, and a little for the sum of 2000 float32 numbers.
    assert found.dtype == np.float16 and (abs(found - exact) <= 2.0**-11 * abs(exact) + 1e-3).all()


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_place_of_the_largest(axis, keepdims):
    for x in (values(4, 5), np.zeros((4, 5), np.float32), values(4, 5, dtype=np.int32)):
        agrees("ArgMax", [x], {"axis": axis, "keepdims": keepdims})
    agrees("ArgMax", [values(7)], {"keepdims": keepdims})


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_running_sums(axis):
    agrees("CumSum", [values(4, 5), scalar(axis)], close=True)
    agrees("CumSum", [values(4, 5, dtype=np.int64), scalar(axis, np.int32)])
    agrees("CumSum", [values(0, 5), scalar(axis)])


# --- shapes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_are_read(shape):
    x = values(*shape)
    agrees("Size", [x])
    agrees("Identity", [x])
    for attributes in ({}, {"start": 1}, {"end": -1}, {"start": -2, "end": 99}, {"start": 2, "end": 1}):
        agrees("Shape", [x], attributes)


def test_axes_are_exchanged():
    for attributes in ({}, {"perm": [1, 2, 0]}, {"perm": [0, 2, 1]}):
        agrees("Transpose", [values(2, 3, 4)], attributes)
    agrees("Transpose", [values()])
    agrees("Transpose", [values(0, 3)])


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -3])
def test_flatten(axis):
    agrees("Flatten", [values(2, 3, 4)], {"axis": axis})
    agrees("Flatten", [values(2, 0, 4)], {"axis": axis})


@pytest.mark.parametrize("constants", [(), (1,)])
@pytest.mark.parametrize(
    ("shape", "target", "zero"),
    [
        ((2, 3, 4), [6, 4], 0), ((2, 3, 4), [0, -1], 0), ((2, 3, 4), [-1], 0), ((2, 3, 4), [0, 0, 2, 2], 0),
        ((1,), [], 0), ((), [1, 1], 0), ((0, 3), [3, 0], 1), ((2, 0, 4), [0, 0, 4], 0), ((2, 0, 4), [2, -1], 0),
    ],
)  # fmt: skip
def test_reshape(shape, target, zero, constants):
    agrees("Reshape", [values(*shape), int64(*target)], {"allowzero": zero}, constants=constants)


@pytest.mark.parametrize("constants", [(), (1,)])
def test_extents_of_one_come_and_go(constants):
    for axes in ([0], [-1], [0, 2], [-1, -3], [4, 0]):
        agrees("Unsqueeze", [values(2, 3, 4), int64(*axes)], constants=constants)
    agrees("Unsqueeze", [values(), int64(0)], constants=constants)
    agrees("Unsqueeze", [values(2, 3)], {"axes": [1, 3]}, version=11)
    for axes in ([0], [-1], [0, 2], [-3, -1]):
        agrees("Squeeze", [values(1, 3, 1), int64(*axes)], constants=constants)
    agrees("Squeeze", [values(1, 3, 1)])
    agrees("Squeeze", [values(1, 3, 1)], {"axes": [2]}, version=11)


@pytest.mark.parametrize(
    ("shape", "target"),
    [((3, 1), [2, 1, 4]), ((3, 1), [1, 1]), ((), [2, 3]), ((2, 3), [2, 3]), ((1, 3), [0, 3]), ((2, 3), [1])],
)
def test_expand(shape, target):
    agrees("Expand", [values(*shape), int64(*target)])
    agrees("Expand", [values(*shape), int64(*target)], constants=(1,))


def test_an_expanded_array_is_no_view():
    x = values(1, 3)
    (found,) = on_cpu("Expand", [x, int64(2, 3)])
    assert not np.shares_memory(found, x) and found.flags.c_contiguous


def test_arrays_of_one_value():
    for shape in (int64(2, 3), np.zeros(0, np.int64), int64(0, 4)):
        agrees("ConstantOfShape", [shape])
        agrees("ConstantOfShape", [shape], {"value": numpy_helper.from_array(np.array([7]), "value")})
        agrees("ConstantOfShape", [shape], {"value": numpy_helper.from_array(np.array([True]), "value")})


def test_repeated_counted_and_cut_to_a_triangle():
    agrees("Tile", [values(2, 3), int64(2, 1)])
    agrees("Tile", [values(2, 3), int64(0, 2)])
    for start, limit, step in ((0, 5, 1), (5, 0, -2), (3, 3, 1), (-4, 9, 3)):
        agrees("Range", [scalar(start), scalar(limit), scalar(step)])
        agrees("Range", [scalar(item, np.int32) for item in (start, limit, step)])
    for upper in (0, 1):
        agrees("Trilu", [values(2, 3, 4)], {"upper": upper})
        for k in (-5, -1, 1, 3):
            agrees("Trilu", [values(3, 4), scalar(k)], {"upper": upper})
            agrees("Trilu", [values(3, 4, dtype=np.int64), scalar(k)], {"upper": upper}, constants=(1,))


# --- what is left to the host ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        ("Pow", [values(2), int64(2, 3)], {}),
        ("Pow", [int64(2, 3), values(2)], {}),
        ("ReduceSum", [values(0, 3), int64(0)], {}),
        ("ReduceMean", [values(2, 3, dtype=np.int32)], {}),
        ("Range", [scalar(0, np.float32), scalar(1, np.float32), scalar(0.1, np.float32)], {}),
        ("CumSum", [values(3), scalar(0)], {"exclusive": 1}),
        ("CumSum", [values(3), scalar(0)], {"reverse": 1}),
        ("ArgMax", [values(3)], {"select_last_index": 1}),
        ("ScatterND", [values(3), np.array([[1], [1]]), values(2)], {"reduction": "add"}),
        ("ScatterElements", [values(3), int64(1, 1), values(2)], {"reduction": "add"}),
        ("GatherND", [values(2, 3), np.array([[0], [1]])], {"batch_dims": 1}),
        ("Sin", [values(3, dtype=ml_dtypes.bfloat16)], {}),
        ("Cast", [values(3)], {"to": 8}),
        ("Cast", [values(3)], {"to": 17}),
        ("Equal", [np.array(["a", "b"], object), np.array(["a", "c"], object)], {}),
    ],
)
def test_what_numpy_would_do_otherwise_runs_on_the_host(operator, inputs, attributes):
    assert falls_back(operator, inputs, attributes)


@pytest.mark.parametrize("operator", ["Gather", "Reshape", "Concat", "Identity", "Where"])
def test_strings_move_without_the_host(operator):
    words = np.array(["a", "ß", ""], object)
    inputs = {
        "Gather": [words, int64(2, 0)], "Reshape": [words, int64(3, 1)], "Concat": [words, words],
        "Identity": [words], "Where": [np.array([True, False, True]), words, words[::-1]],
    }[operator]  # fmt: skip
    (found,) = on_cpu(operator, inputs, {"axis": 0} if operator in ("Gather", "Concat") else {})
    assert found.dtype == object and all(isinstance(item, str) for item in found.reshape(-1))
