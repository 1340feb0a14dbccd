"""Attention against onnxruntime and onnx.reference, its storage, and the bits of its rows.

Tolerances: a score is a chain of `width` multiply-adds of values of up to 5, its exponential is within 1.3e-7, and an output
a weighted mean of values of up to 5: 4e-6 absolute. float16 results are rounded once more: 2^-11 of up to 5.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from group_query import VARIANTS, group_query_node
from onnx.reference import ReferenceEvaluator
from single_node import falls_back, in_onnxruntime, model_of, on_cpu
from tokenmill.assembly import select_backend
from tokenmill.compile import compile
from tokenmill.errors import KernelError, OperatorError
from tokenmill.model.loading import open_graph
from tokenmill.model.roles import PortPair

MICROSOFT = {"domain": "com.microsoft"}
KEY, VALUE = PortPair("i3", "o1"), PortPair("i4", "o2")


@pytest.fixture
def rng():
    return np.random.default_rng(17)


def close(actual, expected):
    assert actual.dtype == expected.dtype
    atol = 4e-6 if expected.dtype == np.float32 else 5e-3
    np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), rtol=0, atol=atol)


def group_query(inputs, attributes, **more):
    tables = [index for index in (7, 8) if index < len(inputs) and inputs[index] is not None]
    return on_cpu("GroupQueryAttention", inputs, attributes, (True,) * 3, constants=tables, **MICROSOFT, **more)


class TestGroupQueryAttention:
    @pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
    def test_variants(self, rng, variant):
        inputs, attributes = group_query_node(rng, **variant)
        expected = in_onnxruntime("GroupQueryAttention", inputs, attributes, (True,) * 3, **MICROSOFT)
        for actual, wanted in zip(group_query(inputs, attributes), expected, strict=True):
            close(actual, wanted)

    @pytest.mark.parametrize("rows", [9, 33])
    @pytest.mark.parametrize(
        "variant",
        [
            name
            for name, given in VARIANTS.items()
            if not {"lengths", "position_ids"} & set(given) and "full" not in name
        ],
    )
    def test_variants_of_many_rows(self, rng, variant, rows):
        capacity = {"capacity": 60} if "capacity" in VARIANTS[variant] else {}
        inputs, attributes = group_query_node(rng, **{**VARIANTS[variant], "rows": rows, **capacity})
        expected = in_onnxruntime("GroupQueryAttention", inputs, attributes, (True,) * 3, **MICROSOFT)
        for actual, wanted in zip(group_query(inputs, attributes), expected, strict=True):
            close(actual, wanted)

    @pytest.mark.parametrize("dtype", [np.float32, np.float16])
    @pytest.mark.parametrize("rows", [1, 3, 40])
    @pytest.mark.parametrize(("heads", "groups", "size"), [(2, 1, 24), (9, 3, 64), (5, 5, 16), (4, 2, 136)])
    def test_sizes(self, rng, heads, groups, size, rows, dtype):
        inputs, attributes = group_query_node(
            rng, heads=heads, groups=groups, head_size=size, rows=rows, past=150, dtype=dtype, local_window_size=100
        )
        expected = in_onnxruntime("GroupQueryAttention", inputs, attributes, (True,) * 3, **MICROSOFT)
        for actual, wanted in zip(group_query(inputs, attributes), expected, strict=True):
            close(actual, wanted)

    @pytest.mark.parametrize("rows", [3, 20])
    def test_batches_of_different_lengths(self, rng, rows):
        lengths = [rows + 4, rows - 1, rows]
        inputs, attributes = group_query_node(
            rng,
            batch=3,
            rows=rows,
            capacity=40,
            lengths=lengths,
            query_lengths=[rows, rows - 2, 0],
            total=40,
            rotary=16,
        )
        expected = in_onnxruntime("GroupQueryAttention", inputs, attributes, (True,) * 3, **MICROSOFT)
        actual = group_query(inputs, attributes)
        for index, (count, length) in enumerate(zip([rows, rows - 2, 0], lengths, strict=True)):
            close(actual[0][index, :count], expected[0][index, :count])
            for present in (1, 2):
                close(actual[present][index, :, :length], expected[present][index, :, :length])

    @pytest.mark.parametrize("dtype", [np.float32, np.float16])
    def test_bits_of_a_row_depend_on_neither_rows_nor_threads(self, rng, dtype):
        inputs, attributes = group_query_node(rng, heads=6, groups=2, rows=8, past=50, rotary=16, dtype=dtype)
        whole, *held = group_query(inputs, attributes)
        for threads in (1, 2, 3):
            for rows in range(1, 9):
                lengths = np.array([50 + rows - 1], np.int32)
                part = [*(x[:, :rows] for x in inputs[:3]), *inputs[3:5], lengths, np.array(50 + rows, np.int32)]
                output, key, value = group_query([*part, *inputs[7:]], attributes, threads=threads)
                np.testing.assert_array_equal(output, whole[:, :rows])
                np.testing.assert_array_equal(key, held[0][:, :, : 50 + rows])
                np.testing.assert_array_equal(value, held[1][:, :, : 50 + rows])

    @pytest.mark.parametrize("rows", [4, 30])
    def test_a_later_row_that_is_not_finite_changes_no_earlier_one(self, rng, rows):
        inputs, attributes = group_query_node(rng, rows=rows, past=5)
        clean = group_query(inputs, attributes)[0]
        for x in inputs[:3]:
            x[:, -1] = np.nan
        spoilt = group_query(inputs, attributes)[0]
        # Many rows go side by side, a block of 16 positions at a time.
        kept = rows - 1 if rows <= 8 else (rows - 1) // 16 * 16
        np.testing.assert_array_equal(spoilt[:, :kept], clean[:, :kept])
        assert np.isnan(spoilt[:, -1]).all()

    @pytest.mark.parametrize("change", [{"qk_output": 1}, {"past": 6, "k_quant_type": "PER_TENSOR"}])
    def test_what_it_leaves_to_the_host(self, rng, change):
        if "qk_output" in change:
            inputs, attributes = group_query_node(rng, **change)
            assert falls_back("GroupQueryAttention", inputs, attributes, (True,) * 4, **MICROSOFT)
        else:
            inputs, attributes = group_query_node(rng, **change)
            with pytest.raises(OperatorError, match="quantized"):
                on_cpu("GroupQueryAttention", inputs, attributes, (True,) * 3, **MICROSOFT)

    def test_positions_beyond_the_tables_are_an_error(self, rng):
        inputs, attributes = group_query_node(rng, rows=1, past=70, rotary=16)
        model, feeds = model_of("GroupQueryAttention", inputs, attributes, (True,) * 3, **MICROSOFT)
        with pytest.raises(KernelError, match="index"):
            compile(model, backend="cpu").run(feeds)

    def test_lengths_beyond_the_cache_are_refused(self, rng):
        inputs, attributes = group_query_node(rng, rows=1, past=6, lengths=[9], total=7)
        with pytest.raises(OperatorError, match="GroupQueryAttention"):
            on_cpu("GroupQueryAttention", inputs, attributes, (True,) * 3, **MICROSOFT)


class TestStorage:
    @pytest.fixture(params=[np.float32, np.float16])
    def steps(self, request, rng):
        """A prompt, a chunk and single tokens of one sequence, and the executable that takes them."""
        inputs, attributes = group_query_node(rng, rows=16, past=0, rotary=16, dtype=request.param)
        past = [np.zeros((1, 2, 0, 16), request.param)] * 2
        model, _ = model_of(
            "GroupQueryAttention",
            [*inputs[:3], *past, *inputs[5:]],
            attributes,
            (True,) * 3,
            constants=(7, 8),
            **MICROSOFT,
        )
        for port, names in ((3, "past"), (4, "past"), (1, "total"), (2, "total")):
            info = model.graph.input[port] if names == "past" else model.graph.output[port]
            kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(request.param))
            shape = [1, 2, names, 16]
            info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, kind, shape))
        backend, _ = select_backend("cpu", {"threads": 2})
        executable = backend.compile(open_graph(model))
        feeds, start = [], 0
        for rows in (10, 4, 1, 1):
            part = {f"i{i}": inputs[i][:, start : start + rows] for i in range(3)}
            start += rows
            feeds.append({**part, "i5": np.array([start - 1], np.int32), "i6": np.array(start, np.int32)})
        return executable, feeds, np.dtype(request.param)

    def test_new_rows_are_written_behind_the_logical_length_at_a_fixed_address(self, steps):
        executable, feeds, dtype = steps
        assert executable.appends_in_place(KEY) and executable.appends_in_place(VALUE)
        bound, copied = executable.open(), executable.open()
        bindings = [bound.bind(pair, (1, 2, 24, 16), dtype) for pair in (KEY, VALUE)]
        for binding in bindings:
            binding.view(24)[...] = np.nan  # what stands behind the length is never read
        addresses = dict(bound.stats().bindings)
        past, length = [np.zeros((1, 2, 0, 16), dtype)] * 2, 0
        for step in feeds:
            (output,) = (value.numpy() for value in bound.run(step).values())
            expected, *past = (value.numpy() for value in copied.run({**step, "i3": past[0], "i4": past[1]}).values())
            np.testing.assert_array_equal(output, expected)
            length += step["i0"].shape[1]
            for binding, held in zip(bindings, past, strict=True):
                binding.set_length(length)
                np.testing.assert_array_equal(binding.read(), held)
                assert np.isnan(binding.read(24)[:, :, length:]).all()
        assert bound.stats().bindings == addresses
        assert bound.stats().host_fallbacks == 0

    def test_rows_beyond_the_capacity_are_refused(self, steps):
        executable, feeds, dtype = steps
        context = executable.open()
        bindings = [context.bind(pair, (1, 2, 9, 16), dtype) for pair in (KEY, VALUE)]
        with pytest.raises(OperatorError, match="10 entries are more than the 9"):
            context.run(feeds[0])
        assert not any(binding.read(9).any() for binding in bindings)


def in_the_reference(inputs, attributes, outputs, version):
    model, feeds = model_of("Attention", inputs, attributes, outputs, version=version)
    return ReferenceEvaluator(model).run(None, feeds)


STANDARD = {
    "plain": {},
    "causal": {"is_causal": 1},
    "scale and cap": {"scale": 0.3, "softcap": 2.0},
    "past": {"past": 70},
    "past, causal": {"past": 70, "is_causal": 1},
    "flat": {"flat": True, "past": 7, "is_causal": 1},
    "boolean mask": {"mask": "bool", "past": 7},
    "mask": {"mask": "float", "past": 7, "is_causal": 1},
    "short mask": {"mask": "short"},
    "lengths": {"lengths": True, "is_causal": 1},
    "one head each": {"heads": 2},
    "wide values": {"value_size": 40},
    "float16": {"dtype": np.float16, "past": 7},
}


def standard_node(rng, *, rows, heads=4, groups=2, size=24, value_size=None, dtype=np.float32, **variant):
    batch, past, flat = 2, variant.pop("past", 0), variant.pop("flat", False)
    mask, lengths = variant.pop("mask", ""), variant.pop("lengths", False)
    value_size, keys = value_size or size, rows + 3

    def normal(count, length, width):
        x = rng.standard_normal((batch, count, length, width)).astype(dtype)
        return x.transpose(0, 2, 1, 3).reshape(batch, length, -1) if flat else x

    total = keys + past
    masks = {
        "": None,
        "bool": rng.random((rows, total)) < 0.7,
        "float": rng.standard_normal((batch, 1, rows, total)).astype(dtype),
        "short": rng.random((rows, total - 2)) < 0.7,
    }
    held = [rng.standard_normal((batch, groups, past, width)).astype(dtype) for width in (size, value_size)]
    inputs = [
        normal(heads, rows, size),
        normal(groups, keys, size),
        normal(groups, keys, value_size),
        masks[mask],
        *(held if past else [None, None]),
        np.array([rows + 1, rows + 3]) if lengths else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    return inputs, {**variant, **({"q_num_heads": heads, "kv_num_heads": groups} if flat else {})}


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("variant", STANDARD)
def test_standard_attention(rng, variant, rows):
    inputs, attributes = standard_node(rng, rows=rows, **STANDARD[variant])
    outputs = (True,) * (3 if "past" in STANDARD[variant] else 1)
    expected = in_the_reference(inputs, attributes, outputs, 24)
    for actual, wanted in zip(on_cpu("Attention", inputs, attributes, outputs, version=24), expected, strict=True):
        close(actual, wanted)


@pytest.mark.parametrize("rows", [2, 20])
def test_rows_that_see_no_key_are_zero(rng, rows):
    inputs, attributes = standard_node(rng, rows=rows, mask="bool")
    inputs[3][0] = False
    (actual,) = on_cpu("Attention", inputs, attributes)
    assert not actual[:, :, 0].any()
    close(actual, in_the_reference(inputs, attributes, (True,), 24)[0])


MULTI_HEAD = {
    "plain": {},
    "past": {"past": 6},
    "causal": {"unidirectional": 1},
    "bias": {"bias": (1, 4)},
    "mask of keys": {"mask": 2},
    "mask of keys, bias of each": {"mask": 2, "bias": (2, 1), "past": 6},
    "float16": {"dtype": np.float16},
}


@pytest.mark.parametrize("rows", [1, 5, 20])
@pytest.mark.parametrize("variant", MULTI_HEAD)
def test_multi_head_attention(rng, variant, rows):
    given = dict(MULTI_HEAD[variant])
    past, dtype, bias = given.pop("past", 0), given.pop("dtype", np.float32), given.pop("bias", None)
    mask = given.pop("mask", 0)

    def normal(*shape):
        return rng.standard_normal(shape).astype(dtype)

    inputs = [
        *(normal(2, rows, 64) for _ in range(3)),
        None,
        np.array([[1] * (past + rows), [0] + [1] * (past + rows - 1)], np.int32) if mask else None,
        None if bias is None else normal(*bias, rows, past + rows),
        *((normal(2, 4, past, 16), normal(2, 4, past, 16)) if past else ()),
    ]
    while inputs[-1] is None:
        inputs.pop()
    attributes, outputs = {"num_heads": 4, **given}, (True,) * (3 if past else 1)
    actual = on_cpu("MultiHeadAttention", inputs, attributes, outputs, **MICROSOFT)
    if dtype == np.float16:  # onnxruntime's CPU provider has it in float32 alone
        wide = [None if x is None else x.astype(np.float32) for x in inputs]
        expected = [
            y.astype(dtype) for y in in_onnxruntime("MultiHeadAttention", wide, attributes, outputs, **MICROSOFT)
        ]
    else:
        expected = in_onnxruntime("MultiHeadAttention", inputs, attributes, outputs, **MICROSOFT)
    for got, wanted in zip(actual, expected, strict=True):
        close(got, wanted)
