"""What a plan keeps, runs, counts and says: facts of the walk, whatever the operators compute."""

from __future__ import annotations

import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
import tokenmill
from onnx import TensorProto, helper, numpy_helper
from tokenmill.assembly import select_backend
from tokenmill.errors import OperatorError, UnsupportedOperatorError
from tokenmill.model.loading import open_graph
from tokenmill.trace import TraceEvent, Tracer
from tokenmill_cpu.operators import operator as registry
from tokenmill_cpu.operators.operator import Node, Operator

HEADER = '<ir_version: 8, opset_import: ["" : 17, "test" : 1]>\n'


def compiled(text: str):
    backend, _ = select_backend("cpu", {"threads": 2})
    return backend.compile(open_graph(onnx.parser.parse_model(HEADER + text)))


def outputs(executable, **feeds):
    return [value.numpy() for value in executable.open().run(feeds).values()]


def names_of_constants(plan):
    return sorted(plan.program.slot_names[slot] for slot in plan.constants)


@pytest.fixture
def register(monkeypatch):
    """Declares an operator of the domain `test` for one test."""

    def declare(name: str, operator: Operator) -> None:
        def prepare(node: Node) -> Operator:
            return operator

        monkeypatch.setitem(registry._REGISTERED, ("test", name), [registry.Registration(1, None, prepare)])

    return declare


class Scaled(Operator):
    """Multiplies by its constant second input, which it keeps by itself; leaves float64 to the host."""

    packs = frozenset({1})
    weight_bytes = 1000

    def run(self, frame, inputs):
        assert inputs[1] is None
        return NotImplemented if inputs[0].dtype == np.float64 else (inputs[0] * 3,)


SCALED = """
    g (float[n] x) => (float[n] y{more_outputs})
    <float[1] weight = {{3}}, float[1] unread = {{7}}, float[1] bias = {{1}}>
    {{ scaled = test.Scaled (x, weight)  y = Add (scaled, bias) {more} }}
"""


# --- constants -------------------------------------------------------------------------------------------------------


def test_a_constant_that_was_packed_and_one_that_nobody_reads_are_dropped(register):
    register("Scaled", Scaled())
    executable = compiled(SCALED.format(more_outputs="", more=""))
    assert names_of_constants(executable.plan) == ["bias"]
    assert executable.weight_bytes == 1000 + 4
    (y,) = outputs(executable, x=np.array([1, 2], np.float32))
    assert y.tolist() == [4, 7]


def test_a_packed_constant_that_another_node_reads_is_kept(register):
    register("Scaled", Scaled())
    executable = compiled(SCALED.format(more_outputs=", float[1] z", more="z = Sub (x, weight)"))
    assert names_of_constants(executable.plan) == ["bias", "weight"]
    assert outputs(executable, x=np.ones(1, np.float32))[1].tolist() == [-2]


def test_a_packed_constant_that_is_an_output_is_kept(register):
    register("Scaled", Scaled())
    executable = compiled(SCALED.format(more_outputs=", float[1] weight", more=""))
    assert outputs(executable, x=np.ones(1, np.float32))[1].tolist() == [3]


def test_constants_cannot_be_written_to():
    (y,) = outputs(compiled("g (float x) => (float[2] y) <float[2] c = {1, 2}> { y = Identity (c) }"), x=np.float32(0))
    with pytest.raises(ValueError, match="read-only"):
        y[0] = 5


def test_a_mapped_constant_that_two_branches_share_counts_once(tmp_path):
    model = onnx.parser.parse_model(HEADER + BRANCHES)
    (tensor,) = model.graph.initializer
    # Only raw bytes are saved beside the model.
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, size_threshold=0)
    backend, _ = select_backend("cpu", {})
    assert backend.compile(open_graph(tmp_path / "model.onnx")).weight_bytes == 2 * 4


# --- branches --------------------------------------------------------------------------------------------------------

BRANCHES = """
    g (float[2] x, bool flag) => (float[2] y)
    <float[2] c = {10, 20}>
    {
        doubled = Add (x, x)
        y = If <
            then_branch = t () => (float[2] sum) { [inner_sum] sum = Add (doubled, c) },
            else_branch = e () => (float[2] product) { [inner_product] product = Mul (doubled, c) }
        > (flag)
    }
"""


@pytest.mark.parametrize(("flag", "expected"), [(True, [12, 24]), (False, [20, 80])])
def test_the_branch_that_is_asked_for_runs_with_what_it_captures(flag, expected):
    (y,) = outputs(compiled(BRANCHES), x=np.array([1, 2], np.float32), flag=np.array(flag))
    assert y.tolist() == expected


def test_nodes_of_branches_are_listed():
    assert [use.operator for use in compiled(BRANCHES).operators()] == ["Add", "If", "Add", "Mul"]


def test_a_branch_that_is_not_taken_does_not_run(register):
    class Forbidden(Operator):
        def run(self, frame, inputs):
            raise AssertionError

    register("Forbidden", Forbidden())
    executable = compiled(
        """g (float[2] x, bool flag) => (float[2] y) {
            y = If <then_branch = t () => (float[2] a) { a = Neg (x) },
                    else_branch = e () => (float[2] b) { b = test.Forbidden (x) }> (flag)
        }"""
    )
    x = np.ones(2, np.float32)
    assert outputs(executable, x=x, flag=np.array(True))[0].tolist() == [-1, -1]
    with pytest.raises(OperatorError, match="Forbidden"):
        outputs(executable, x=x, flag=np.array(False))


# --- the host fallback -----------------------------------------------------------------------------------------------


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.events: list[TraceEvent] = []

    def emit(self, event: TraceEvent) -> None:
        self.events.append(event)

    def close(self) -> None: ...


#: No kernel has it: three-dimensional determinants are nothing that a decoder computes.
ON_HOST = "g (float[n, 2, 2] x) => (float[n] y) { [first] d = Det (x)  [second] y = Neg (d) }"


def test_a_node_on_the_host_is_counted_at_each_run_and_traced_once():
    executable, sink = compiled(ON_HOST), Kept()
    context = executable.open(Tracer(sink))
    for _ in range(3):
        context.run({"x": np.eye(2, dtype=np.float32)[None]})
    assert context.stats().host_fallbacks == 3
    traced = [event for event in sink.events if event.name == "host_fallback"]
    assert [event.arguments["node"] for event in traced] == ["first"]
    assert "Det" in traced[0].arguments["operator"]
    assert [use.runs_on for use in executable.operators()] == ["host fallback", "cpu"]


def test_types_that_an_operator_leaves_run_on_the_host():
    executable = compiled("g (float[2] x, int64[2] k) => (float[2] y) { y = Pow (x, k) }")
    context = executable.open()
    result = context.run({"x": np.array([2, 3], np.float32), "k": np.array([3, 2])})["y"].numpy()
    assert result.dtype == np.float32 and result.tolist() == [8, 9]
    assert context.stats().host_fallbacks == 1


def test_the_host_gets_constants_that_were_packed(register, monkeypatch):
    """An operator of the standard, so that the host has it, too."""
    monkeypatch.setitem(registry._REGISTERED, ("", "Mul"), [registry.Registration(1, None, lambda node: Scaled())])
    executable = compiled("g (double[2] x) => (double[2] y) <double[1] weight = {5}> { y = Mul (x, weight) }")
    context = executable.open()
    assert context.run({"x": np.ones(2)})["y"].numpy().tolist() == [5, 5]
    assert context.stats().host_fallbacks == 1 and not executable.plan.constants


# --- errors ----------------------------------------------------------------------------------------------------------


def test_an_error_names_the_node_with_shapes_and_types():
    executable = compiled("g (float[n] x, float[m] c) => (float[k] y) { [the_sum] y = Add (x, c) }")
    with pytest.raises(OperatorError, match=r"Add-17 'the_sum' cannot take float32\[2\], float32\[3\]"):
        outputs(executable, x=np.zeros(2, np.float32), c=np.zeros(3, np.float32))


def test_an_error_in_a_branch_names_the_inner_node():
    text = BRANCHES.replace("float[2] x", "float[n] x")
    with pytest.raises(OperatorError, match=r"Add-17 'inner_sum' cannot take float32\[3\], float32\[2\]"):
        outputs(compiled(text), x=np.zeros(3, np.float32), flag=np.array(True))


def test_an_error_describes_inputs_that_were_packed(register):
    class Failing(Scaled):
        def run(self, frame, inputs):
            raise ValueError("no")

    register("Scaled", Failing())
    with pytest.raises(OperatorError, match=r"test::Scaled-1 .* cannot take float32\[1\], float32\[1\].*no"):
        outputs(compiled(SCALED.format(more_outputs="", more="")), x=np.ones(1, np.float32))


def test_operators_that_nobody_has_are_all_named():
    with pytest.raises(UnsupportedOperatorError, match=r"2 node\(s\).*test::First.*test::Second"):
        compiled("g (float x) => (float y) { a = test.First (x)  y = test.Second (a) }")


def test_after_an_error_the_next_run_is_as_any():
    executable = compiled("g (float[n] x, float[m] c) => (float[k] y) { y = Add (x, c) }")
    context = executable.open()
    with pytest.raises(OperatorError):
        context.run({"x": np.zeros(2, np.float32), "c": np.zeros(3, np.float32)})
    assert context.run({"x": np.ones(2, np.float32), "c": np.ones(2, np.float32)})["y"].numpy().tolist() == [2, 2]


# --- values ----------------------------------------------------------------------------------------------------------


def test_a_value_is_given_back_behind_its_last_reader(register):
    seen = []

    class Watch(Operator):
        def run(self, frame, inputs):
            seen.append(weakref.ref(inputs[0]))
            return (inputs[0] + 1,)

    class Look(Operator):
        def run(self, frame, inputs):
            assert seen[-1]() is None
            return (inputs[0],)

    register("Watch", Watch())
    register("Look", Look())
    text = "g (float[2] x) => (float[2] y) { a = Neg (x)  b = test.Watch (a)  y = test.Look (b) }"
    assert outputs(compiled(text), x=np.zeros(2, np.float32))[0].tolist() == [1, 1]
    assert seen


def test_an_omitted_input_is_none_and_an_unwanted_output_goes_nowhere(register):
    class Optional(Operator):
        def run(self, frame, inputs):
            assert [value is None for value in inputs] == [False, True, False]
            return inputs[0], inputs[0] + 1, inputs[2]

    register("Optional", Optional())
    node = helper.make_node("Optional", ["x", "", "c"], ["", "y", "z"], domain="test")
    x, c, y, z = (helper.make_tensor_value_info(name, 1, [2]) for name in "xcyz")
    model = helper.make_model(
        helper.make_graph([node], "g", [x, c], [y, z]),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("test", 1)],
        ir_version=8,
    )
    backend, _ = select_backend("cpu", {})
    results = outputs(backend.compile(open_graph(model)), x=np.zeros(2, np.float32), c=np.full(2, 5, np.float32))
    assert [result.tolist() for result in results] == [[1, 1], [5, 5]]


def test_threads_share_a_plan_with_a_context_each():
    executable, wrong = compiled(BRANCHES), []

    def repeat(value: float) -> None:
        context = executable.open()
        for _ in range(50):
            result = context.run({"x": np.full(2, value, np.float32), "flag": np.array(True)})["y"].numpy()
            if result.tolist() != [2 * value + 10, 2 * value + 20]:
                wrong.append(result)

    threads = [threading.Thread(target=repeat, args=(float(value),)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(sys.platform != "linux", reason="reads the list of mapped files")
def test_files_of_packed_weights_are_let_go(tmp_path):
    weight = numpy_helper.from_array(np.ones((256, 256), np.float32), "w")
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 256]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", infos[:1], infos[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    graph = tokenmill.compile(tmp_path / "m.onnx", backend="cpu")
    assert str(tmp_path / "m.data") not in Path("/proc/self/maps").read_text()
    assert (graph.run({"x": np.ones((2, 256), np.float32)})["y"] == 256).all()
