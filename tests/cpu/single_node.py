"""One node on the cpu backend, beside onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from tokenmill.assembly import select_backend
from tokenmill.model.loading import open_graph

Inputs = Sequence["np.ndarray | None"]


def model_of(
    operator: str,
    inputs: Inputs,
    attributes: Mapping[str, Any] | None = None,
    outputs: Sequence[bool] = (True,),
    *,
    domain: str = "",
    version: int = 24,
    constants: Sequence[int] = (),
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node, and its feeds.

    :param outputs: which ones are wanted.
    :param constants: positions of inputs that become initializers.
    """
    names = ["" if value is None else f"i{index}" for index, value in enumerate(inputs)]
    feeds, infos, initializers = {}, [], []
    for index, (name, value) in enumerate(zip(names, inputs, strict=True)):
        if value is None:
            continue
        tensor = numpy_helper.from_array(np.asarray(value), name)
        if index in constants:
            initializers.append(tensor)
        else:
            feeds[name] = value
            infos.append(helper.make_tensor_value_info(name, tensor.data_type, [None] * value.ndim))
    results = [f"o{index}" if wanted else "" for index, wanted in enumerate(outputs)]
    node = helper.make_node(operator, names, results, "tested", domain=domain, **dict(attributes or {}))
    infos_out = [onnx.ValueInfoProto(name=name) for name in results if name]
    graph = helper.make_graph([node], "g", infos, infos_out, initializers)
    opsets = [helper.make_opsetid("", version), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds


def on_cpu(
    operator: str, inputs: Inputs, *others: Any, threads: int = 2, level: str = "auto", **more: Any
) -> list[np.ndarray]:
    """Outputs of the cpu backend's own operator: the host fallback is not allowed."""
    model, feeds = model_of(operator, inputs, *others, **more)
    backend, _ = select_backend("cpu", {"threads": threads, "instructions": level})
    context = backend.compile(open_graph(model)).open()
    results = [value.numpy() for value in context.run(feeds).values()]
    assert context.stats().host_fallbacks == 0
    assert context.take_error() == 0
    return results


def falls_back(operator: str, inputs: Inputs, *others: Any, **more: Any) -> bool:
    """Whether the host runs the node."""
    model, feeds = model_of(operator, inputs, *others, **more)
    backend, _ = select_backend("cpu", {"threads": 2})
    context = backend.compile(open_graph(model)).open()
    context.run(feeds)
    return bool(context.stats().host_fallbacks)


def in_onnxruntime(operator: str, inputs: Inputs, *others: Any, **more: Any) -> list[np.ndarray]:
    model, feeds = model_of(operator, inputs, *others, **more)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))
