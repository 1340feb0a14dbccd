"""`tokenmill.compile` on every backend: ports, values, and what is refused before anything runs."""

from __future__ import annotations

import threading

import numpy as np
import onnx
import onnx.parser
import pytest
import tokenmill
from node_cases import recorded_backends
from tokenmill.errors import ConfigError, ModelFileError, PluginError, PortError, StepError, UnsupportedOperatorError

pytestmark = pytest.mark.parametrize("backend", recorded_backends())

MODEL = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 3] x, int64[1] k, string[m] words) => (float[n, 3] y, float[n, 3] same, string[m] said)
    <float[3] bias = {1, 2, 3}>
    {
        shifted = Add (x, bias)
        f = Cast <to = 1> (k)
        y = Mul (shifted, f)
        same = Identity (x)
        said = Identity (words)
    }
"""


@pytest.fixture
def graph(backend):
    with tokenmill.compile(onnx.parser.parse_model(MODEL), backend) as compiled:
        yield compiled


def feeds(**others):
    return {"x": np.ones((2, 3), np.float32), "k": np.array([2]), "words": np.array(["a", "ß"]), **others}


def test_runs_by_names_and_describes_its_ports(graph, backend):
    result = graph.run(feeds())
    assert list(result) == ["y", "same", "said"]
    assert result["y"].tolist() == [[4, 6, 8], [4, 6, 8]] and result["y"].dtype == np.float32
    assert result["said"].dtype == object and result["said"].tolist() == ["a", "ß"]
    assert [str(port) for port in graph.inputs] == ["x: float[n, 3]", "k: int64[1]", "words: string[m]"]
    assert [port.name for port in graph.outputs] == ["y", "same", "said"]
    assert [use.operator for use in graph.operators()] == ["Add", "Cast", "Mul", "Identity", "Identity"]
    assert f"backend: {backend}" in graph.explain() and "Identity x 2" in graph.explain()


def test_python_values_and_keywords_are_converted(graph):
    result = graph.run(x=[[0, 0, 0.5]], k=[3], words=["b", b"c"])
    assert result["y"].tolist() == [[3, 6, 10.5]] and result["said"].tolist() == ["b", "c"]


def test_outputs_belong_to_the_caller(graph):
    given = feeds()
    first = graph.run(given)
    kept = {name: value.copy() for name, value in first.items()}
    first["same"][:] = -1
    assert (given["x"] == 1).all()
    second = graph.run(feeds(x=np.zeros((2, 3), np.float32)))
    assert second["y"].tolist() != first["y"].tolist()
    assert first["y"].tolist() == kept["y"].tolist()


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"z": 1}, r"no input is called 'z'.*\['k', 'words', 'x'\]"),
        ({"x": np.ones((2, 3))}, r"'x' is float, and was given float64\[2, 3\].*float32"),
        ({"x": np.ones(3, np.float32)}, r"'x' was given the shape \[3\].*x: float\[n, 3\]"),
        ({"x": np.ones((2, 4), np.float32)}, r"'x' was given the shape \[2, 4\]"),
        ({"k": None}, "'k' was given None"),
        ({"k": "seven"}, "'k' cannot take this str as int64"),
        ({"words": np.array([1, 2])}, "'words' is string"),
    ],
)
def test_feeds_that_do_not_fit_are_refused_by_port(graph, others, message):
    with pytest.raises(PortError, match=message):
        graph.run(feeds(**others))
    assert graph.run(feeds())["y"].shape == (2, 3)


def test_missing_feeds_are_listed(graph):
    with pytest.raises(PortError, match=r"2 input\(s\) got no value: x: float\[n, 3\]; words: string\[m\].*\['k'\]"):
        graph.run(k=np.array([1]))


def test_sequences_and_optionals_as_graph_inputs_and_outputs(backend):
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        g (seq(float[n]) rows, optional(float[n]) more) => (seq(float[n]) longer, bool given, optional(float[n]) same) {
            given = OptionalHasElement (more)
            longer = If (given) <
                then_branch = t () => (seq(float[n]) a) {
                    one = OptionalGetElement (more)
                    a = SequenceInsert (rows, one)
                },
                else_branch = e () => (seq(float[n]) b) { b = Identity (rows) }>
            same = Identity (more)
        }
    """)
    with tokenmill.compile(model, backend) as graph:
        assert [port.kind for port in graph.inputs] == ["sequence", "optional"]
        assert [port.kind for port in graph.outputs] == ["sequence", "tensor", "optional"]
        rows, more = [np.ones(2, np.float32)], np.zeros(1, np.float32)
        absent = graph.run(rows=rows, more=None)
        assert not absent["given"] and absent["same"] is None and [len(row) for row in absent["longer"]] == [2]
        present = graph.run(rows=rows, more=more)
        assert (
            present["given"] and present["same"].tolist() == [0] and [len(row) for row in present["longer"]] == [2, 1]
        )
        with pytest.raises(PortError, match="'rows' is a sequence"):
            graph.run(rows=more, more=None)


def test_every_unsupported_operator_is_named_those_of_subgraphs_included(backend):
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "vendor" : 3]>
        g (bool go, float[n] x) => (float[n] y) {
            h = vendor.Outer (x)
            y = If (go) <
                then_branch = t () => (float[n] a) { a = vendor.Inner (h) },
                else_branch = e () => (float[n] b) { b = Neg (h) }>
        }
    """)
    model.graph.node[0].name = "first"
    with pytest.raises(UnsupportedOperatorError, match=r"2 node.*vendor::Outer-3 'first'.*vendor::Inner-3"):
        tokenmill.compile(model, backend)


def test_no_model_no_backend_no_option(backend, tmp_path):
    with pytest.raises(ModelFileError):
        tokenmill.compile(tmp_path / "absent.onnx", backend)
    with pytest.raises(ModelFileError):
        tokenmill.compile(b"", backend)
    with pytest.raises(PluginError, match="no_such_device"):
        tokenmill.compile(onnx.parser.parse_model(MODEL), "no_such_device")
    with pytest.raises(ConfigError, match="no_such_option"):
        tokenmill.compile(onnx.parser.parse_model(MODEL), backend, no_such_option=1)


def test_from_a_path_and_from_bytes(backend, tmp_path):
    model = onnx.parser.parse_model(MODEL)
    onnx.save(model, tmp_path / "model.onnx")
    for source in (tmp_path / "model.onnx", str(tmp_path / "model.onnx"), model.SerializeToString()):
        with tokenmill.compile(source, backend) as graph:
            assert graph.run(feeds())["y"].shape == (2, 3)


def test_a_closed_graph_refuses(backend):
    graph = tokenmill.compile(onnx.parser.parse_model(MODEL), backend)
    graph.close()
    graph.close()
    with pytest.raises(StepError, match="closed"):
        graph.run(feeds())


def test_several_threads_may_run_one_graph(graph):
    wrong = []

    def repeat(factor):
        for _ in range(50):
            if graph.run(feeds(k=np.array([factor])))["y"][0, 0] != 2 * factor:
                wrong.append(factor)

    threads = [threading.Thread(target=repeat, args=(factor,)) for factor in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
