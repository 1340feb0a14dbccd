"""A graph laid out as instructions over slots."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnx_ir
import pytest
from tokenmill.errors import ModelError
from tokenmill.model.program import build_program, host_array, instruction_reads


def program(text, opset=17, functions=""):
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}, "local" : 1]>\n{text}\n{functions}')
    return build_program(onnx_ir.serde.deserialize_model(model))


def test_slots_are_freed_at_their_last_reader_and_outputs_never():
    made = program("""
        g (float[2] x) => (float[2] y, float[2] b) <float[2] w = {1, 2}> {
            a = Add (x, w)
            b = Neg (a)
            unread = Abs (x)
            c = Mul (a, b)
            y = Add (c, w)
        }
    """)
    names = made.slot_names
    freed = {
        one.operator + str(index): {names[slot] for slot in one.frees} for index, one in enumerate(made.instructions)
    }
    assert freed == {"Add0": set(), "Neg1": set(), "Abs2": {"x", "unread"}, "Mul3": {"a"}, "Add4": {"c"}}
    assert [names[slot] for slot in made.outputs] == ["y", "b"]
    assert {names[slot] for slot in made.constants} == {"w"}


def test_a_value_read_only_inside_nested_bodies_is_captured_by_each_and_lives_until_then():
    made = program("""
        g (bool p, float[2] x) => (float[2] y) {
            far = Neg (x)
            near = Abs (x)
            y = If (p) <
                then_branch = t () => (float[2] u) {
                    u = If (p) <
                        then_branch = tt () => (float[2] v) { v = Add (far, near) },
                        else_branch = te () => (float[2] w) { w = Identity (near) }>
                },
                else_branch = e () => (float[2] z) { z = Identity (x) }>
        }
    """)
    branch = made.instructions[-1]
    assert {made.slot_names[slot] for slot in instruction_reads(branch)} == {"p", "far", "near", "x"}
    assert {made.slot_names[slot] for slot in branch.frees} == {"p", "far", "near", "x"}
    inner = branch.bodies["then_branch"]
    assert {inner.slot_names[slot] for _, slot in inner.captures} == {"p", "far", "near"}
    assert [one.operator for one in made.walk()] == ["Neg", "Abs", "If", "If", "Add", "Identity", "Identity"]


def test_constants_have_their_onnx_types():
    made = program("""
        g () => (int64 i, float[2] fs, string[2] s, int64[2] many, string one) {
            i = Constant <value_int = 3> ()
            fs = Constant <value_floats = [0.5, 2.0]> ()
            s = Constant <value_strings = ["a", "ä"]> ()
            many = Constant <value_ints = [1, 2]> ()
            one = Constant <value_string = "x"> ()
        }
    """)
    values = {name: made.constant(slot) for name, slot in zip(made.output_names, made.outputs, strict=True)}
    assert values["i"].dtype == np.int64 and values["i"].shape == () and values["i"] == 3
    assert values["fs"].dtype == np.float32 and values["fs"].tolist() == [0.5, 2]
    assert values["s"].dtype == object and values["s"].tolist() == ["a", "ä"]
    assert values["many"].dtype == np.int64 and values["many"].tolist() == [1, 2]
    assert values["one"].shape == () and values["one"].item() == "x"


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn]
)
def test_packed_initializers_come_as_ml_dtypes(dtype):
    weights = np.array([[0, 1, 2], [3, 4, 6]], np.float32).astype(dtype)
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["w"], ["y"])],
        "g",
        [],
        [onnx.helper.make_tensor_value_info("y", element, [2, 3])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)])
    made = build_program(onnx_ir.serde.deserialize_model(model))
    (slot,) = made.constants
    assert made.constant(slot).dtype == np.dtype(dtype)
    np.testing.assert_array_equal(made.constant(slot).astype(np.float32), weights.astype(np.float32))


def test_nodes_of_a_function_keep_the_opset_version_that_it_imports():
    made = program(
        "g (float[n, 2] x) => (float[n, 2] z) { y = local.F <by = 1> (x) z = Softmax (y) }",
        functions="""
            <domain: "local", opset_import: ["" : 11]>
            F <by> (x) => (y) { y = Softmax <axis: int = @by> (x) }
        """,
    )
    assert [(one.operator, one.version) for one in made.instructions] == [("Softmax", 11), ("Softmax", 17)]
    assert made.instructions[0].attributes == {"axis": 1}


def test_omitted_inputs_and_outputs_have_no_slot():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Abs (x) }'
    )
    node = model.graph.node[0]
    node.op_type, node.input[:], node.output[:] = "TopK", ["x", "", "x"], ["", "y"]
    (made,) = build_program(onnx_ir.serde.deserialize_model(model)).instructions
    assert made.inputs == (0, None, 0) and made.outputs == (None, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("g (float[2] x) => (float[2] y) { a = Add (x, b) b = Neg (a) y = Abs (a) }", "no order of execution.*cycle"),
        ("g (float[2] x) => (float[2] y) { y = Add (x, lost) }", "'lost' is read but neither"),
    ],
)
def test_graphs_that_cannot_run_are_refused(text, message):
    with pytest.raises(ModelError, match=message):
        program(text)


def test_functions_that_call_each_other_in_a_circle_are_refused():
    with pytest.raises(ModelError, match="cannot be inlined"):
        program(
            "g (float[2] x) => (float[2] y) { y = local.F (x) }",
            functions='<domain: "local", opset_import: ["" : 17, "local" : 1]>\nF (x) => (y) { y = local.F (x) }',
        )


@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool, np.float16, ml_dtypes.bfloat16, ml_dtypes.int4])
def test_constants_have_the_types_that_numpy_gives_to_others(dtype):
    tensor = onnx_ir.serde.deserialize_tensor(onnx.numpy_helper.from_array(np.ones(3, dtype), "w"))
    assert host_array(tensor).dtype is np.dtype(dtype)
    np.testing.assert_array_equal(host_array(tensor), np.ones(3, dtype))
