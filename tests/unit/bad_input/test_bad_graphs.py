"""Graphs that are whole files and yet no decoders, and weights that are no numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tokenmill
from onnx import numpy_helper
from refusals import refused
from tokenmill.errors import (
    ConfigError,
    InsufficientMemoryError,
    ModelError,
    ModelFileError,
    NonFiniteError,
    PortError,
    TokenmillError,
    UnsupportedOperatorError,
)


def changed(directory: Path, change: Callable[[onnx.GraphProto], object]) -> Path:
    """The directory, its graph changed and whole in one file."""
    proto = onnx.load(directory / "model.onnx")
    change(proto.graph)
    onnx.save(proto, directory / "model.onnx")
    return directory


def unknown_operator(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.op_type == "MatMul")
    node.op_type, node.domain, node.name = "Frobnicate", "com.microsoft", "the_odd_one"


def without(ports: str, name: str) -> Callable[[onnx.GraphProto], None]:
    def change(graph: onnx.GraphProto) -> None:
        declared = getattr(graph, ports)
        declared.remove(next(port for port in declared if port.name == name))

    return change


def dangling(graph: onnx.GraphProto) -> None:
    graph.node[-1].input[0] = "nobody_writes_this"


def twice(graph: onnx.GraphProto) -> None:
    graph.node.append(graph.node[-1])


def backwards(graph: onnx.GraphProto) -> None:
    next(node for node in graph.node if node.op_type == "MatMul").input[0] = "logits"


GRAPHS: dict[str, tuple[Callable[[onnx.GraphProto], object], type[TokenmillError], str]] = {
    "an unknown operator": (unknown_operator, UnsupportedOperatorError, "com.microsoft.*Frobnicate.*the_odd_one"),
    "a past without a present": (without("output", "present.1.value"), PortError, r"past_key_values\.1\.value"),
    "a present without a past": (
        without("input", "past_key_values.0.key"),
        PortError,
        r"past: \[1\], present: \[0, 1\]",
    ),
    "no logits": (without("output", "logits"), PortError, "logits"),
    "a value that nobody writes": (dangling, ModelError, "nobody_writes_this"),
    "a value that is written twice": (twice, ModelFileError, "logits"),
    "a circle": (backwards, ModelError, "no order of execution.*cycle"),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_a_graph(case: str, copy: Path) -> None:
    change, error, text = GRAPHS[case]
    changed(copy, change)
    with refused(error, text):
        tokenmill.load(copy, backend="reference")


@pytest.mark.parametrize(
    ("io", "error", "text"),
    [
        ({"token_input": "tokens"}, PortError, "'tokens'.*input_ids"),
        ({"logits_output": "scores"}, PortError, "'scores'"),
        ({"attention_mask_input": "logits"}, PortError, "'logits'"),
        ({"kv_inputs": ["past_key_values.0.key"], "kv_outputs": []}, PortError, "kv_outputs"),
        ({"token_imput": "input_ids"}, ConfigError, "token_imput"),
        ({"sequence_source": "pictures"}, ConfigError, "pictures"),
    ],
)
def test_declared_roles(io: dict[str, Any], error: type[TokenmillError], text: str, copy: Path) -> None:
    with refused(error, text):
        tokenmill.load(copy, backend="reference", model={"io": io})


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers(value: float, copy: Path) -> None:
    def spoil(graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 2:
                tensor.CopyFrom(numpy_helper.from_array(np.full(tensor.dims, value, np.float32), tensor.name))

    with tokenmill.load(changed(copy, spoil), backend="reference") as model:
        for _ in range(2):  # the first failure leaves nothing that the second would trip over
            with refused(NonFiniteError, "logits"), np.errstate(all="ignore"):
                model.generate([1, 2, 3], max_new_tokens=2)
        with model.session() as session:
            with refused(NonFiniteError, "logits"), np.errstate(all="ignore"):
                session.decode([1, 2, 3], 0)
            assert session.length == 0


def test_a_cache_beyond_memory(directory: Path) -> None:
    with refused(InsufficientMemoryError, r"cache\.max_len"):
        tokenmill.load(directory, backend="cpu", cache={"max_len": 2**40})


def test_an_opset_from_the_future(copy: Path) -> None:
    proto = onnx.load(copy / "model.onnx")
    next(entry for entry in proto.opset_import if entry.domain in ("", "ai.onnx")).version = 9999
    onnx.save(proto, copy / "model.onnx")
    with refused(ModelFileError, "9999"):
        tokenmill.load(copy, backend="reference")


@pytest.mark.parametrize(
    ("feeds", "text"),
    [
        ({}, r"x: float\[4\]"),
        ({"x": np.zeros(4, np.float32), "z": 1}, "'z'"),
        ({"x": np.zeros(4, np.float64)}, "float64"),
        ({"x": np.zeros((2, 4), np.float32)}, r"\[2, 4\]"),
        ({"x": np.zeros(5, np.float32)}, r"\[5\]"),
    ],
)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_feeds_of_a_compiled_graph(backend: str, feeds: dict[str, Any], text: str) -> None:
    value = onnx.helper.make_tensor_value_info
    ports = [value("x", 1, [4])], [value("y", 1, [4])]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "neg", *ports)
    with tokenmill.compile(onnx.helper.make_model(graph, ir_version=8), backend=backend) as compiled:
        with refused(PortError, text):
            compiled.run(feeds)
        np.testing.assert_array_equal(compiled.run(x=np.ones(4, np.float32))["y"], -np.ones(4, np.float32))


def test_an_option_that_the_backend_lacks(directory: Path) -> None:
    with refused(ConfigError, "no_such_option"):
        tokenmill.compile(directory / "model.onnx", backend="cpu", no_such_option=1)
