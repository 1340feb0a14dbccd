"""An ONNX graph, written node by node, its weights into a data file beside it as they come."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 21
IR_VERSION = 10
MICROSOFT = "com.microsoft"
#: Weights begin at a page, small ones at a cache line: both can be mapped as they lie.
_PAGE, _LINE = 4096, 64


class GraphWriter:
    """Nodes in order, weights on disk: what is held in memory is one weight at a time."""

    def __init__(self, directory: Path, name: str) -> None:
        self._file, self._name = directory / "model.onnx", name
        self._data: BinaryIO = (directory / "model.onnx.data").open("xb")
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[TensorProto] = []
        self._constants: dict[tuple[str, bytes, tuple[int, ...]], str] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def __enter__(self) -> GraphWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._data.close()

    def input(self, name: str, dtype: int, shape: Sequence[int | str]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name: str, dtype: int, shape: Sequence[int | str]) -> str:
        self._outputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def node(
        self,
        operator: str,
        inputs: Sequence[str],
        name: str,
        *,
        outputs: Sequence[str] | int = 1,
        domain: str = "",
        **attributes: Any,
    ) -> list[str]:
        """Append a node. :param outputs: their names, or how many to name after the node. :return: their names."""
        names = [f"{name}/output_{i}" for i in range(outputs)] if isinstance(outputs, int) else list(outputs)
        self._nodes.append(helper.make_node(operator, list(inputs), names, name=name, domain=domain, **attributes))
        return names

    def constant(self, value: NDArray[Any]) -> str:
        """A small value inside of the graph; equal ones are one."""
        key = (value.dtype.name, value.tobytes(), value.shape)
        if key not in self._constants:
            self._constants[key] = f"constants/{len(self._constants)}"
            self._weights.append(numpy_helper.from_array(value, self._constants[key]))
        return self._constants[key]

    def weight(self, name: str, value: NDArray[Any]) -> str:
        """A weight in the data file."""
        value = np.ascontiguousarray(value)
        alignment = _PAGE if value.nbytes >= _PAGE else _LINE
        self._data.write(bytes(-self._data.tell() % alignment))
        tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(value.dtype), dims=value.shape)
        tensor.data_location = TensorProto.EXTERNAL
        facts = {"location": "model.onnx.data", "offset": self._data.tell(), "length": value.nbytes}
        for key, fact in facts.items():
            tensor.external_data.add(key=key, value=str(fact))
        self._data.write(value.data)
        self._weights.append(tensor)
        return name

    def save(self) -> None:
        """Write `model.onnx`."""
        graph = helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, self._weights)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="tokenmill")
        self._file.write_bytes(model.SerializeToString())
