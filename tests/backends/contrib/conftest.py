"""One node in onnxruntime: the oracle of these tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from tokenmill.model.program import build_program
from tokenmill_reference.contrib import operators
from tokenmill_reference.fallback import create


def one_node(
    operator: str,
    inputs: Sequence[np.ndarray | None],
    attributes: Mapping[str, Any] | None = None,
    outputs: int = 1,
    *,
    domain: str = "com.microsoft",
    constants: Sequence[int] = (),
    version: int = 21,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node, and what to feed it.

    Inputs in `constants`, and those of types that cannot be fed from numpy, become initializers.

    :param version: of the standard domain.
    """
    names = [f"i{index}" if value is not None else "" for index, value in enumerate(inputs)]
    feeds, initializers, infos = {}, [], []
    for index, (name, value) in enumerate(zip(names, inputs, strict=True)):
        if value is None:
            continue
        tensor = numpy_helper.from_array(value, name)
        if index in constants or value.dtype.kind == "V" or value.dtype.name in ("int4", "uint4"):
            initializers.append(tensor)
        else:
            feeds[name] = value
            infos.append(helper.make_tensor_value_info(name, tensor.data_type, value.shape))
    results = [f"o{index}" for index in range(outputs)]
    node = helper.make_node(operator, names, results, "tested", domain=domain, **dict(attributes or {}))
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=name) for name in results], initializers)
    opsets = [helper.make_opsetid("", version), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds


def run_in_onnxruntime(
    operator: str,
    inputs: Sequence[np.ndarray | None],
    attributes: Mapping[str, Any] | None = None,
    outputs: int = 1,
    **others: Any,
) -> list[np.ndarray]:
    """Run one node, as `one_node` makes it, on the CPU provider without graph optimizations."""
    model, feeds = one_node(operator, inputs, attributes, outputs, **others)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def run_in_fallback(
    operator: str,
    inputs: Sequence[np.ndarray | None],
    attributes: Mapping[str, Any] | None = None,
    outputs: int = 1,
    **others: Any,
) -> list[np.ndarray]:
    """Run one node, as `one_node` makes it, through the host operators that every backend is offered."""
    model, _ = one_node(operator, inputs, attributes, outputs, **others)
    (instruction,) = build_program(onnx_ir.serde.deserialize_model(model)).instructions
    return list(create().bind(instruction)(inputs))


def distance(actual: np.ndarray, expected: np.ndarray, terms: int = 1) -> float:
    """Largest difference over what rounding explains: below 1 is equal.

    onnxruntime sums `terms` products in float32 (each order its own), then rounds to the output's type.
    """
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    if not actual.size:
        return 0.0
    if expected.dtype.kind in "iu":
        return float(np.abs(actual.astype(np.int64) - expected.astype(np.int64)).max())
    wide, target = actual.astype(np.float64), expected.astype(np.float64)
    magnitude = np.abs(target).max() + 1e-6
    unit = float(ml_dtypes.finfo(expected.dtype).eps) if expected.dtype != np.float32 else 0.0
    allowed = (8 * np.sqrt(terms) * np.finfo(np.float32).eps + unit) * magnitude
    return float(np.abs(wide - target).max() / allowed)


Check = Callable[..., None]


@pytest.fixture
def agrees() -> Check:
    """Run an operator here and in onnxruntime, and compare the outputs that are asked for."""

    def check(
        operator: str,
        inputs: Sequence[np.ndarray | None],
        attributes: Mapping[str, Any] | None = None,
        outputs: int = 1,
        *,
        domain: str = "com.microsoft",
        terms: int = 1,
        constants: Sequence[int] = (),
        compared: Sequence[int] | None = None,
    ) -> None:
        expected = run_in_onnxruntime(operator, inputs, attributes, outputs, domain=domain, constants=constants)
        actual = operators()[domain, operator](inputs, dict(attributes or {}), outputs)
        for index in compared if compared is not None else range(outputs):
            assert distance(actual[index], expected[index], terms) < 1, f"output {index}"

    return check


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
