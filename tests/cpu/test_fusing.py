"""What is computed when a graph is prepared, and nodes that become one."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator
from tokenmill.assembly import select_backend
from tokenmill.errors import OperatorError
from tokenmill.model.loading import open_graph

HEADER = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>\n'


def compiled(text: str):
    model = onnx.parser.parse_model(HEADER + text)
    backend, _ = select_backend("cpu", {"threads": 2})
    return backend.compile(open_graph(model)), model


def operators(executable) -> list[str]:
    return [call.instruction.operator for call in executable.plan.calls]


def run(executable, **feeds):
    return [value.numpy() for value in executable.open().run(feeds).values()]


# --- constants -------------------------------------------------------------------------------------------------------


def test_nodes_of_constants_run_once():
    executable, _ = compiled("""
        g (float[n, 4] x) => (float[n, 4] y)
        <float[4] a = {1, 2, 3, 4}, float[4] b = {5, 6, 7, 8}, int64[2] shape = {1, 4}>
        { s = Add (a, b) r = Reshape (s, shape) y = Mul (x, r) }
    """)
    assert operators(executable) == ["Mul"]
    assert run(executable, x=np.ones((2, 4), np.float32))[0].tolist() == [[6, 8, 10, 12]] * 2


def test_a_result_that_is_an_output_stays():
    executable, _ = compiled(
        "g (float[n] x) => (float[n] y, float[2] z) <float[2] a = {1, -2}> { z = Neg (a) y = Neg (x) }"
    )
    y, z = run(executable, x=np.ones(3, np.float32))
    assert z.tolist() == [-1, 2] and y.tolist() == [-1, -1, -1]


def test_random_numbers_are_drawn_at_each_run():
    executable, _ = compiled("""
        g (float[8] x) => (float[8] y) <float[8] a = {0, 0, 0, 0, 0, 0, 0, 0}>
        { r = RandomNormalLike (a) y = Add (x, r) }
    """)
    x = np.zeros(8, np.float32)
    assert not np.array_equal(run(executable, x=x)[0], run(executable, x=x)[0])


def test_what_would_take_far_more_memory_is_computed_when_it_is_wanted():
    executable, _ = compiled("""
        g (float[n] x) => (float[n, m] y) <float[1] a = {1}, int64[1] big = {1000000}>
        { wide = Expand (a, big) column = Unsqueeze (x, axis) axis = Constant <value = int64[1] {1}> () y = Mul (column, wide) }
    """)
    assert "Expand" in operators(executable)
    assert run(executable, x=np.ones(1, np.float32))[0].shape == (1, 1_000_000)


def test_a_failing_node_of_constants_fails_where_it_is_reached():
    executable, _ = compiled("""
        g (bool c, float[2] x) => (float[2] y) <float[2] a = {1, 2}, int64[1] shape = {3}>
        { y = If (c) <
            then_branch = t () => (float[2] p) { bad = Reshape (a, shape) p = Add (x, bad) },
            else_branch = e () => (float[2] q) { q = Neg (x) } > }
    """)
    x = np.ones(2, np.float32)
    assert run(executable, c=np.array(False), x=x)[0].tolist() == [-1, -1]
    with pytest.raises(OperatorError, match="Reshape"):
        run(executable, c=np.array(True), x=x)


def test_a_branch_reads_what_was_computed_around_it():
    executable, _ = compiled("""
        g (bool c, float[2] x) => (float[2] y) <float[2] a = {1, 2}>
        { b = Neg (a) y = If (c) <
            then_branch = t () => (float[2] p) { p = Add (x, b) },
            else_branch = e () => (float[2] q) { q = Sub (x, b) } > }
    """)
    assert operators(executable) == ["If"]
    assert run(executable, c=np.array(True), x=np.zeros(2, np.float32))[0].tolist() == [-1, -2]


# --- gates -----------------------------------------------------------------------------------------------------------

GATE = "g ({type}[n, {gate}] x, {type}[n, m] y) => ({type}[n, m] z{more}) {{ {body} }}"
ORDERS = [
    "s = Sigmoid (x) t = Mul (x, s) z = Mul (t, y)",
    "s = Sigmoid (x) t = Mul (s, x) z = Mul (t, y)",
    "s = Sigmoid (x) t = Mul (x, s) z = Mul (y, t)",
]


@pytest.mark.parametrize("body", ORDERS)
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 37), (70, 300), (2, 1)])
def test_a_gate_is_one_kernel(body, rows, width):
    executable, model = compiled(GATE.format(type="float", gate="m", more="", body=body))
    assert operators(executable) == ["GatedSilu"]
    rng = np.random.default_rng(3)
    feeds = {name: (4 * rng.standard_normal((rows, width))).astype(np.float32) for name in "xy"}
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    # A sigmoid within 2e-7, and two products.
    np.testing.assert_allclose(run(executable, **feeds)[0], expected, rtol=6e-7, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "dtype", "tolerance"),
    [("float16", np.float16, 2e-3), ("bfloat16", ml_dtypes.bfloat16, 2e-2), ("double", np.float64, 1e-14)],
)
def test_gates_of_other_floats(kind, dtype, tolerance):
    executable, _ = compiled(GATE.format(type=kind, gate="m", more="", body=ORDERS[0]))
    rng = np.random.default_rng(4)
    x, y = (rng.standard_normal((3, 20)).astype(dtype) for _ in range(2))
    (z,) = run(executable, x=x, y=y)
    wide = x.astype(np.float64)
    assert z.dtype == dtype
    np.testing.assert_allclose(z.astype(np.float64), wide / (1 + np.exp(-wide)) * y.astype(np.float64), rtol=tolerance)


def test_a_gate_for_all_features():
    executable, model = compiled(GATE.format(type="float", gate="1", more="", body=ORDERS[0]))
    feeds = {"x": np.array([[1], [-2]], np.float32), "y": np.arange(10, dtype=np.float32).reshape(2, 5)}
    np.testing.assert_allclose(run(executable, **feeds)[0], ReferenceEvaluator(model).run(None, feeds)[0], rtol=6e-7)


@pytest.mark.parametrize("more", [", float[n, m] s", ", float[n, m] t"])
def test_a_gate_of_which_a_part_is_wanted_stays_apart(more):
    executable, _ = compiled(GATE.format(type="float", gate="m", more=more, body=ORDERS[0]))
    assert operators(executable) == ["Sigmoid", "Mul", "Mul"]


def test_a_gate_of_which_a_part_is_read_twice_stays_apart():
    body = "s = Sigmoid (x) t = Mul (x, s) u = Mul (t, y) z = Add (u, t)"
    executable, _ = compiled(GATE.format(type="float", gate="m", more="", body=body))
    assert operators(executable) == ["Sigmoid", "Mul", "Mul", "Add"]


# --- products of one input -------------------------------------------------------------------------------------------


def quantized(columns: list[int], *, bias: bool = False, bits: int = 4, block: int = 32):
    """Products of one input `[rows, 64]`, as a model."""
    rng = np.random.default_rng(5)
    nodes, initializers = [], []
    for index, count in enumerate(columns):
        weight = rng.integers(0, 256, (count, 64 // block, block * bits // 8), np.uint8)
        scale = rng.uniform(0.01, 0.1, (count, 64 // block)).astype(np.float32)
        arrays = {f"w{index}": weight, f"s{index}": scale}
        if bias:
            arrays[f"b{index}"] = rng.standard_normal(count).astype(np.float32)
        initializers += [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
        names = list(arrays)
        inputs = ["x", *names[:2], *(["", "", names[2]] if bias else [])]
        attributes = {"N": count, "K": 64, "bits": bits, "block_size": block, "accuracy_level": 4}
        nodes.append(onnx.helper.make_node("MatMulNBits", inputs, [f"y{index}"], domain="com.microsoft", **attributes))
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [value("x", onnx.TensorProto.FLOAT, ["n", 64])],
        [value(f"y{index}", onnx.TensorProto.FLOAT, None) for index in range(len(columns))],
        initializers,
    )
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


def prepared(model):
    backend, _ = select_backend("cpu", {"threads": 2})
    return backend.compile(open_graph(model))


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize(("columns", "bias"), [([32, 16, 48], False), ([16, 5], True), ([64, 64], True)])
def test_products_of_one_input_are_one_with_the_same_bits(columns, bias, rows):
    model = quantized(columns, bias=bias)
    joined = prepared(model)
    assert operators(joined) == ["JoinedMatMulNBits"]
    x = np.random.default_rng(6).standard_normal((rows, 64)).astype(np.float32)
    for index, y in enumerate(run(joined, x=x)):
        single = onnx.ModelProto()
        single.CopyFrom(model)
        node, output = model.graph.node[index], model.graph.output[index]
        del single.graph.node[:], single.graph.output[:]
        single.graph.node.append(node)
        single.graph.output.append(output)
        alone = prepared(single)
        assert operators(alone) == ["MatMulNBits"]
        assert np.array_equal(run(alone, x=x)[0], y)


def test_products_that_end_within_a_group_of_columns_stay_apart():
    assert operators(prepared(quantized([5, 16]))) == ["MatMulNBits", "MatMulNBits"]
