"""Open an ONNX file, and read it as a decoder together with what lies beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.errors import ModelFileError
from tokenmill.model.beside import BesideFiles, read_beside
from tokenmill.model.decoder import Decoder
from tokenmill.model.graph import OnnxGraph
from tokenmill.model.locating import locate
from tokenmill.model.metadata import read_metadata
from tokenmill.model.parsing import check_versions, deserialize, parse, read_file
from tokenmill.model.ports import graph_ports
from tokenmill.model.requirements import DecoderRole, check_decoder
from tokenmill.model.resolving import resolve_roles
from tokenmill.model.weights import check_weights

if TYPE_CHECKING:
    import onnx
    import onnx_ir


def open_graph(source: str | Path | bytes | onnx.ModelProto | onnx_ir.Model) -> OnnxGraph:
    """Open and check a model. Weights in other files stay there, mapped when they are first read.

    :param source: path of an `.onnx` file or of a directory that holds one, its bytes, or a model in memory.
    :raises ModelFileError: a file that is missing, empty, truncated, no ONNX model, or newer than the installed onnx;
        external data that is missing, truncated or outside the model's directory.
    :raises InsufficientMemoryError: a file that does not fit into the free memory.
    """
    path: Path | None = None
    title = "the model in memory"
    model: onnx_ir.Model
    if isinstance(source, (str, Path)):
        path = locate(Path(source))
        title = f"'{path}'"
        model = deserialize(parse(read_file(path), title), title)
    elif isinstance(source, (bytes, bytearray, memoryview)):
        model = deserialize(parse(bytes(source), title), title)
    else:
        model = _in_memory(source, title)
    check_versions(model, title)
    check_weights(model, None if path is None else path.parent.absolute())
    _drop_initialized_inputs(model)
    inputs, outputs = graph_ports(model, title)
    opsets = {"" if domain == "ai.onnx" else domain: version for domain, version in model.opset_imports.items()}
    return OnnxGraph(model, inputs, outputs, opsets, path)


def _in_memory(source: onnx.ModelProto | onnx_ir.Model, title: str) -> onnx_ir.Model:
    import onnx
    import onnx_ir

    if isinstance(source, onnx_ir.Model):
        # A graph of one's own: inlining and dropped inputs must not show in the caller's.
        return source.clone()
    if isinstance(source, onnx.ModelProto):
        return deserialize(source, title)
    raise ModelFileError(
        f"a model cannot be opened from {type(source).__name__}",
        remedy="give a path, bytes, an onnx.ModelProto or an onnx_ir.Model",
    )


def _drop_initialized_inputs(model: onnx_ir.Model) -> None:
    """Up to IR version 3, initializers had to be listed among the inputs; nobody feeds those."""
    graph = model.graph
    fed = [value for value in graph.inputs if value.name not in graph.initializers]
    if len(fed) != len(graph.inputs):
        graph.inputs[:] = fed


def load_decoder(path: str | Path, *, io: Mapping[str, Any] | None = None, role: DecoderRole = "target") -> Decoder:
    """Load a decoder: its graph, the roles of its ports, and what its directory says about it.

    :param path: a directory, or an `.onnx` file whose directory is then read too.
    :param io: roles that override every other source; keys as in `model.io` of `inference_metadata.yaml`.
    :param role: a `proposer` may be stateless, borrow its target's KV, and give a projected state instead of logits.
    :raises ModelFileError: see `open_graph`; also a file beside the model that is malformed.
    :raises PortError: roles or past/present pairs that do not fit the graph.
    """
    graph = open_graph(path)
    assert graph.path is not None
    beside = read_beside(graph.path)
    return decoder_of(graph, io=io, role=role, beside=beside)


def decoder_of(
    graph: OnnxGraph,
    *,
    io: Mapping[str, Any] | None = None,
    role: DecoderRole = "target",
    beside: BesideFiles | None = None,
) -> Decoder:
    """A decoder of a graph that is already open; see `load_decoder`."""
    beside = beside or BesideFiles()
    roles = resolve_roles(graph, beside, explicit=io, role=role)
    check_decoder(graph, roles, role)
    return Decoder(graph, roles, read_metadata(beside), beside.directory)
