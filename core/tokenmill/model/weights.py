"""Weights, in the model file or in files of their own: each is checked before anything reads or maps it.

A tensor that points past the end of its file would read foreign memory or end the process with SIGBUS, and one that
points out of the model's directory would make a model read any file of the user.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import define, field

from tokenmill.errors import ModelFileError
from tokenmill.model.signature import SNIFFED_BYTES, recognise

if TYPE_CHECKING:
    import onnx_ir


def tensors(model: onnx_ir.Model) -> Iterator[onnx_ir.TensorProtocol]:
    """Every constant of a model: initializers and tensor attributes, those of subgraphs and functions included."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        yield from _graph_tensors(graph)


def _graph_tensors(graph: onnx_ir.Graph) -> Iterator[onnx_ir.TensorProtocol]:
    yield from (value.const_value for value in graph.initializers.values() if value.const_value is not None)
    for node in graph:
        for attribute in node.attributes.values():
            if attribute.is_ref() or attribute.value is None:
                continue
            kind = attribute.type.name
            if kind == "TENSOR":
                yield attribute.value
            elif kind == "TENSORS":
                yield from attribute.value
            elif kind == "GRAPH":
                yield from _graph_tensors(attribute.value)
            elif kind == "GRAPHS":
                for subgraph in attribute.value:
                    yield from _graph_tensors(subgraph)


def check_weights(model: onnx_ir.Model, directory: Path | None) -> None:
    """Check every constant tensor, and let those in other files be mapped from `directory`.

    :param directory: of the model file; None for a model in memory, whose tensors must name their own base directory.
    :raises ModelFileError: a file that is missing, too short, of another kind or outside the directory, or an extent
        that does not fit the tensor's type and shape; names tensor, file and numbers.
    """
    import onnx_ir

    checked = _CheckedFiles()
    for tensor in tensors(model):
        _check_form(tensor)
        if not isinstance(tensor, onnx_ir.ExternalTensor):
            _check_inline(tensor)
            continue
        if tensor.dtype.name == "STRING":
            raise ModelFileError(
                f"tensor {_title(tensor)} is stored in '{tensor.location}'", why="ONNX keeps text inside"
            )
        if directory is not None:
            tensor.base_dir = directory
        elif not os.fspath(tensor.base_dir):
            raise ModelFileError(
                f"tensor '{tensor.name}' is stored in the file '{tensor.location}', but the model has no path",
                why="a model in memory does not say in which directory its weights are",
                remedy="give the path of the .onnx file, or load the weights into the model first",
            )
        _check_tensor(tensor, checked.size(tensor))


def _check_form(tensor: onnx_ir.TensorProtocol) -> None:
    if tensor.dtype.name == "UNDEFINED" or any(not isinstance(extent, int) or extent < 0 for extent in tensor.shape):
        raise ModelFileError(
            f"tensor {_title(tensor)} has no type or an impossible shape", remedy="export the model again"
        )


def _check_inline(tensor: onnx_ir.TensorProtocol) -> None:
    """A tensor in the message has its bytes in `raw_data`, or its elements in the field of their type (onnx.proto)."""
    import onnx_ir

    if isinstance(tensor, onnx_ir.serde.TensorProtoTensor) and tensor.raw.HasField("raw_data"):
        unit, found, expected = "bytes", len(tensor.raw.raw_data), tensor.nbytes
    elif isinstance(tensor, onnx_ir.serde.TensorProtoTensor):
        name = tensor.dtype.name
        unit, proto = "elements", tensor.raw
        found = max(
            map(len, (proto.float_data, proto.int32_data, proto.int64_data, proto.double_data, proto.uint64_data))
        )
        expected = tensor.size * 2 if name.startswith("COMPLEX") else tensor.size
        if tensor.dtype.bitwidth < 8:  # packed, one byte an entry
            expected = tensor.nbytes
    elif isinstance(tensor, onnx_ir.StringTensor):
        unit, found, expected = "strings", len(tensor.string_data()), tensor.size
    else:
        return
    if found != expected:
        raise ModelFileError(
            f"tensor {_title(tensor)} holds {found:,} {unit}",
            why=f"its type and shape take {expected:,}",
            remedy="the file is damaged: export or fetch the model again",
        )


def _title(tensor: onnx_ir.TensorProtocol) -> str:
    return f"'{tensor.name}' ({tensor.dtype.name.lower()}{list(tensor.shape)})"


def _check_tensor(tensor: onnx_ir.ExternalTensor, file_size: int) -> None:
    where = f"tensor {_title(tensor)} in '{tensor.path}'"
    offset, length = tensor.offset or 0, tensor.length
    if length is not None and length != tensor.nbytes:
        raise ModelFileError(
            f"{where} declares {length:,} bytes, its type and shape take {tensor.nbytes:,}",
            remedy="the .onnx file does not describe these weights: export the model again",
        )
    if offset < 0 or offset + tensor.nbytes > file_size:
        raise ModelFileError(
            f"{where} takes the bytes {offset:,} to {offset + tensor.nbytes:,}, the file ends at {file_size:,}",
            why="it is truncated, or belongs to another model",
            remedy="fetch the file again, together with the .onnx file",
        )


@define
class _CheckedFiles:
    """Sizes of data files that passed; a model keeps hundreds of tensors in one."""

    _sizes: dict[str, int] = field(factory=dict)

    def size(self, tensor: onnx_ir.ExternalTensor) -> int:
        path = tensor.path
        if path not in self._sizes:
            self._sizes[path] = _checked_size(tensor)
        return self._sizes[path]


def _checked_size(tensor: onnx_ir.ExternalTensor) -> int:
    location, base = os.fspath(tensor.location), Path(tensor.base_dir)
    where = f"tensor '{tensor.name}' is stored in '{location}'"
    if not location or "\0" in location:
        raise ModelFileError(f"tensor '{tensor.name}' is stored outside the model but names no file {location!r}")
    # Windows spellings are refused everywhere, so that a model is as portable as it is safe.
    if location.startswith(("/", "\\")) or Path(location).is_absolute() or location[1:2] == ":":
        raise ModelFileError(
            f"{where}, an absolute path",
            why=f"weights must lie inside the model's directory '{base}'",
            remedy="export the model with a relative location for its external data",
        )
    try:
        root, path = base.resolve(), (base / location).resolve()
    except (OSError, RuntimeError) as error:
        raise ModelFileError(f"{where}, which cannot be resolved", why=str(error)) from error
    if not path.is_relative_to(root):
        raise ModelFileError(
            f"{where}, which leads to '{path}'",
            why=f"that is outside the model's directory '{root}'",
            remedy="copy the file itself into the directory (no symbolic link) and store its bare name",
        )
    if not path.is_file():
        found = "is not a file" if path.exists() else "does not exist"
        raise ModelFileError(
            f"{where}, but '{path}' {found}",
            remedy="fetch the weights too: they belong beside the .onnx file",
        )
    return _readable_size(where, path, tensor)


def _readable_size(where: str, path: Path, tensor: onnx_ir.ExternalTensor) -> int:
    try:
        status = path.stat()
        with path.open("rb") as file:
            head = file.read(SNIFFED_BYTES)
    except OSError as error:
        raise ModelFileError(f"{where}, but '{path}' cannot be read", why=str(error)) from error
    if status.st_nlink > 1:
        raise ModelFileError(
            f"{where}, but '{path}' has {status.st_nlink} hard links",
            why="onnx-ir maps no such file: another name could be outside the model's directory",
            remedy="copy the file (`cp FILE COPY && mv COPY FILE`)",
        )
    end = (tensor.offset or 0) + tensor.nbytes
    foreign = recognise(head) if status.st_size < end else None  # raw weights may begin with any bytes
    if foreign is not None:
        raise ModelFileError(
            f"{where}, but '{path}' ({status.st_size:,} bytes) is {foreign.kind}", remedy=foreign.remedy
        )
    return status.st_size
