"""From bytes to an onnx-ir model, with every failure as a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tokenmill.errors import InsufficientMemoryError, ModelFileError
from tokenmill.model.memory import free_memory
from tokenmill.model.signature import SNIFFED_BYTES, recognise

if TYPE_CHECKING:
    import onnx
    import onnx_ir

#: A protobuf message cannot be larger.
PROTOBUF_LIMIT = (1 << 31) - 1


def read_file(path: Path) -> bytes:
    """The bytes of a model file that may be one.

    :raises ModelFileError: unreadable, empty, or evidently a file of another kind.
    :raises InsufficientMemoryError: it does not fit into memory.
    """
    try:
        with path.open("rb") as file:
            head = file.read(SNIFFED_BYTES)
            size = path.stat().st_size
            _check_head(head, size, f"'{path}'")
            if size > PROTOBUF_LIMIT:
                raise ModelFileError(
                    f"'{path}' has {size:,} bytes",
                    why=f"a protobuf message ends at {PROTOBUF_LIMIT:,}",
                    remedy="save the model with external data",
                )
            # The bytes and the parsed message are held at the same time.
            if 2 * size > (free := free_memory()):
                raise InsufficientMemoryError(
                    f"reading '{path}' takes {2 * size:,} bytes, {free:,} are free",
                    remedy="save the model with external data, which is mapped instead of read, or free memory",
                )
            return head + file.read()
    except OSError as error:
        raise ModelFileError(f"'{path}' cannot be read", why=error.strerror or str(error)) from error


def _check_head(head: bytes, size: int, title: str) -> None:
    if not head:
        raise ModelFileError(f"{title} is empty", remedy="download or export the model again")
    foreign = recognise(head)
    if foreign is not None:
        raise ModelFileError(f"{title} ({size:,} bytes) is {foreign.kind}, not an ONNX model", remedy=foreign.remedy)


def parse(data: bytes, title: str) -> onnx.ModelProto:
    """Parse a serialized model.

    :raises ModelFileError: bytes that are no ONNX model, or not all of one.
    """
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    _check_head(data[:SNIFFED_BYTES], len(data), title)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelFileError(
            f"{title} ({len(data):,} bytes) is not a complete ONNX model",
            why=f"the protobuf parser says: {error}",
            remedy="it is truncated or damaged: compare its size with the publisher's and fetch it again",
        ) from error
    return proto


def deserialize(proto: onnx.ModelProto, title: str) -> onnx_ir.Model:
    """Make the graph library's model of a parsed one.

    :raises ModelFileError: a message without a graph, or with parts that ONNX does not know.
    """
    import onnx_ir

    # Many foreign files parse as protobuf with unknown fields only.
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise ModelFileError(
            f"{title} parses as protobuf but holds no graph",
            why=f"IR version {proto.ir_version}, {len(proto.graph.node)} nodes, {len(proto.graph.output)} outputs",
            remedy="it is another kind of protobuf file, or was cut off: export or fetch the model again",
        )
    if proto.ir_version <= 0:
        raise ModelFileError(f"{title} states no ONNX IR version", remedy="export or fetch the model again")
    if proto.graph.sparse_initializer:
        raise ModelFileError(
            f"{title} has {len(proto.graph.sparse_initializer)} sparse initializers",
            why="the graph library does not read them",
            remedy="convert them to dense ones",
        )
    try:
        return onnx_ir.from_proto(proto)
    except RecursionError as error:
        raise ModelFileError(f"{title} nests its subgraphs too deeply") from error
    except Exception as error:  # onnx-ir wraps whatever a malformed message runs into
        root: BaseException = error
        while (inner := root.__cause__ or root.__context__) is not None:
            root = inner
        reason = str(root).splitlines() or [type(root).__name__]
        raise ModelFileError(
            f"{title} is not a valid ONNX model", why=reason[0], remedy="check it with onnx.checker and export it again"
        ) from error


def check_versions(model: onnx_ir.Model, title: str) -> None:
    """Refuse what the installed onnx does not know yet.

    :raises ModelFileError: a newer IR version or standard opset, or no opset at all.
    """
    import onnx

    remedy = "upgrade the onnx package, or export the model with an older version"
    if model.ir_version > onnx.IR_VERSION:
        raise ModelFileError(
            f"{title} has ONNX IR version {model.ir_version}",
            why=f"the installed onnx {onnx.__version__} knows versions up to {onnx.IR_VERSION}",
            remedy=remedy,
        )
    if not model.opset_imports:
        raise ModelFileError(f"{title} imports no operator set", remedy="export the model again")
    newest = {"": onnx.defs.onnx_opset_version(), "ai.onnx": onnx.defs.onnx_opset_version()}
    for domain, version in model.opset_imports.items():
        if version < 1 or version > newest.get(domain, version):
            raise ModelFileError(
                f"{title} imports operator set {version} of the domain '{domain or 'ai.onnx'}'",
                why=f"the installed onnx {onnx.__version__} knows versions 1 to {newest.get(domain, version)}",
                remedy=remedy,
            )
