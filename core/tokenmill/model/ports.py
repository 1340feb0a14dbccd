"""A graph's inputs and outputs as ports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenmill.errors import ModelFileError
from tokenmill.model.graph import Dimension, Port, PortKind

if TYPE_CHECKING:
    import onnx_ir


def graph_ports(model: onnx_ir.Model, title: str) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """The ports of a model.

    :raises ModelFileError: a port without a name, two inputs or two outputs of one name, or an output nobody computes.
    """
    graph = model.graph
    inputs = tuple(_port(value) for value in graph.inputs)
    outputs = tuple(_port(value) for value in graph.outputs)
    for side, ports in (("input", inputs), ("output", outputs)):
        names = [port.name for port in ports]
        if "" in names:
            raise ModelFileError(f"{title} has a graph {side} without a name", remedy="export the model again")
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ModelFileError(
                f"{title} has several graph {side}s called {repeated}", remedy="export the model again"
            )
    fed = set(graph.inputs) | set(graph.initializers.values())
    orphans = [value.name for value in graph.outputs if value.producer() is None and value not in fed]
    if orphans:
        raise ModelFileError(
            f"{title} has outputs that no node computes: {orphans}", remedy="the model is cut off: export it again"
        )
    return inputs, outputs


def _port(value: onnx_ir.Value) -> Port:
    kind, element = _kind_and_element(value.type)
    shape: tuple[Dimension, ...] | None = None
    if value.shape is not None and kind in ("tensor", "sparse"):
        shape = tuple(_dimension(extent) for extent in value.shape)
    return Port(value.name or "", element, shape, kind)


def _kind_and_element(kind_of: Any) -> tuple[PortKind, str]:
    import onnx_ir

    kind: PortKind = "tensor"
    if isinstance(kind_of, onnx_ir.OptionalType):
        kind, kind_of = "optional", kind_of.elem_type
        if isinstance(kind_of, onnx_ir.SequenceType):
            kind_of = kind_of.elem_type
    elif isinstance(kind_of, onnx_ir.SequenceType):
        kind, kind_of = "sequence", kind_of.elem_type
    elif isinstance(kind_of, onnx_ir.SparseTensorType):
        kind = "sparse"
    if kind_of is None:
        return kind, ""
    dtype = kind_of if isinstance(kind_of, onnx_ir.DataType) else kind_of.dtype
    return kind, "" if dtype.name == "UNDEFINED" else dtype.name.lower()


def _dimension(extent: Any) -> Dimension:
    if isinstance(extent, int):
        return extent if extent >= 0 else None
    return extent.value or None
