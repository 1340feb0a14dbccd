"""Opening files and models in memory: what is read, and what is refused with which words."""

from __future__ import annotations

import gzip
import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from tokenmill.errors import InsufficientMemoryError, ModelFileError
from tokenmill.model import parsing
from tokenmill.model.graph import Port
from tokenmill.model.loading import open_graph

ZOO = Path(__file__).parents[2] / "data" / "zoo"


def model(*, opset: int = 18, ir_version: int = 8) -> onnx.ModelProto:
    """`y = x + w`, with the weight `w` inside."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "add",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


# --- what opens ------------------------------------------------------------------------------------------------------


def test_a_model_opens_from_path_text_bytes_proto_and_graph_library(tmp_path: Path) -> None:
    path = write(tmp_path / "model.onnx", model().SerializeToString())
    for source in (path, str(path), tmp_path, path.read_bytes(), model(), onnx_ir.from_proto(model())):
        graph = open_graph(source)
        assert graph.inputs == (Port("x", "float", ("batch", 4)),)
        assert graph.outputs == (Port("y", "float", ("batch", 4)),)
        assert graph.opsets == {"": 18}
        assert graph.path == (path if isinstance(source, (str, Path)) else None)


def test_an_initializer_listed_among_the_inputs_is_no_port() -> None:
    old = model(ir_version=3, opset=8)
    old.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4]))
    graph = open_graph(old)
    assert [port.name for port in graph.inputs] == ["x"]
    assert graph.program.input_names == ("x",)


def test_opening_leaves_the_callers_model_as_it_was() -> None:
    old = model(ir_version=3, opset=8)
    old.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4]))
    mine = onnx_ir.from_proto(old)
    open_graph(mine)
    assert [value.name for value in mine.graph.inputs] == ["x", "w"]


def test_sequence_optional_sparse_and_shapeless_ports_are_described() -> None:
    floats = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    names = {
        "list": helper.make_sequence_type_proto(floats),
        "maybe": helper.make_optional_type_proto(floats),
        "maybe_list": helper.make_optional_type_proto(helper.make_sequence_type_proto(floats)),
        "sparse": helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [2, 3]),
        "rankless": helper.make_tensor_type_proto(TensorProto.STRING, None),
        "unnamed": helper.make_tensor_type_proto(TensorProto.BFLOAT16, [None, "n", 3]),
    }
    inputs = [helper.make_value_info(name, kind) for name, kind in names.items()]
    output = helper.make_tensor_value_info("y", TensorProto.STRING, None)
    graph = helper.make_graph([helper.make_node("Identity", ["rankless"], ["y"])], "kinds", inputs, [output])
    ports = open_graph(helper.make_model(graph, ir_version=8)).inputs
    assert [str(port) for port in ports] == [
        "list: sequence of float[?]",
        "maybe: optional of float[?]",
        "maybe_list: optional of float[?]",
        "sparse: sparse of float[2, 3]",
        "rankless: string[?]",
        "unnamed: bfloat16[?, n, 3]",
    ]


def test_the_file_of_a_directory_is_chosen_by_config_then_name_then_alone(tmp_path: Path) -> None:
    data = model().SerializeToString()
    only = write(tmp_path / "anything.onnx", data)
    assert open_graph(tmp_path).path == only
    merged = write(tmp_path / "decoder_model_merged.onnx", data)
    assert open_graph(tmp_path).path == merged
    usual = write(tmp_path / "model.onnx", data)
    assert open_graph(tmp_path).path == usual
    config = {"model": {"decoder": {"filename": "anything.onnx"}}}
    (tmp_path / "genai_config.json").write_text(json.dumps(config))
    assert open_graph(tmp_path).path == only


def test_optimums_onnx_folder_is_looked_into(tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    path = write(tmp_path / "onnx" / "model.onnx", model().SerializeToString())
    assert open_graph(tmp_path).path == path


def test_weights_beside_the_model_are_mapped_and_right(tmp_path: Path) -> None:
    proto = model()
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    graph = open_graph(tmp_path / "m.onnx")
    weight = graph.model.graph.initializers["w"].const_value
    assert isinstance(weight, onnx_ir.ExternalTensor)
    np.testing.assert_array_equal(weight.numpy(), np.arange(4, dtype=np.float32))


# --- files that are no models ----------------------------------------------------------------------------------------

SAFETENSORS_HEADER = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'

FOREIGN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git-lfs pointer.*git lfs pull"),
    "html": (b"<!DOCTYPE html><html><body>Sign in</body></html>", "HTML or XML page.*download"),
    "html after blank lines": (b"\n\n  <html></html>", "HTML or XML page"),
    "json": (b'{"model_type": "llama"}', "JSON text"),
    "text": (b"Entry not found, sorry", "text that begins 'Entry not found"),
    "safetensors": (struct.pack("<Q", len(SAFETENSORS_HEADER)) + SAFETENSORS_HEADER + b"\0" * 4, "safetensors"),
    "gguf": (b"GGUF\x03\0\0\0" + b"\0" * 32, "GGUF model.*\\.gguf"),
    "ort": (b"\x20\0\0\0ORTM" + b"\0" * 32, "ORT format"),
    "pickle": (b"\x80\x04\x95\x10\0\0\0", "pickle"),
    "gzip": (gzip.compress(b"x"), "gzip"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + b"\0" * 16, "HDF5"),
    "zeros": (b"\0" * 4096, "nothing but zero bytes"),
    "random": (bytes(range(255, 0, -1)), "not a complete ONNX model"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_file_of_another_kind_is_named_with_what_to_do(case: str, tmp_path: Path) -> None:
    data, expected = FOREIGN[case]
    path = write(tmp_path / "model.onnx", data)
    for source in (path, data):
        with pytest.raises(ModelFileError, match=f"(?s){expected}"):
            open_graph(source)


def test_a_zip_archive_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.onnx", "w") as archive:
        archive.writestr("data.pkl", "x")
    with pytest.raises(ModelFileError, match="zip archive or PyTorch checkpoint"):
        open_graph(tmp_path / "model.onnx")


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
def test_a_model_cut_off_anywhere_is_refused(keep: float, tmp_path: Path) -> None:
    data = (ZOO / "optimum-gpt2" / "model.onnx").read_bytes()
    path = write(tmp_path / "model.onnx", data[: int(len(data) * keep)])
    with pytest.raises(ModelFileError):
        open_graph(path)


def test_no_flipped_byte_raises_anything_else() -> None:
    data = bytearray(model().SerializeToString())
    opened = 0
    for position in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = data.copy()
            damaged[position] ^= flip
            try:
                open_graph(bytes(damaged))
                opened += 1
            except ModelFileError:
                pass
    # Names and numbers may change into other valid ones; structure may not.
    assert 0 < opened < 3 * len(data)


def test_protobuf_without_a_graph_is_refused() -> None:
    with pytest.raises(ModelFileError, match="holds no graph"):
        open_graph(onnx.ModelProto(ir_version=8, producer_name="someone").SerializeToString())
    with pytest.raises(ModelFileError, match="holds no graph"):
        open_graph(onnx.OperatorSetIdProto(domain="someone's", version=3).SerializeToString())


def edited(edit: Callable[[onnx.ModelProto], object], **versions: int) -> onnx.ModelProto:
    proto = model(**versions)
    edit(proto)
    return proto


NEWEST_OPSET = onnx.defs.onnx_opset_version()

INVALID: dict[str, tuple[onnx.ModelProto, str]] = {
    "no IR version": (edited(lambda m: m.ClearField("ir_version")), "states no ONNX IR version"),
    "newer IR": (model(ir_version=onnx.IR_VERSION + 1), f"IR version {onnx.IR_VERSION + 1}.*up to {onnx.IR_VERSION}"),
    "newer opset": (model(opset=NEWEST_OPSET + 1), f"operator set {NEWEST_OPSET + 1} .*1 to {NEWEST_OPSET}"),
    "opset 0": (model(opset=0), "operator set 0"),
    "no opset": (edited(lambda m: m.ClearField("opset_import")), "imports no operator set"),
    "two inputs of one name": (
        edited(lambda m: m.graph.input.append(m.graph.input[0])),
        "several graph inputs called \\['x'\\]",
    ),
    "two outputs of one name": (
        edited(lambda m: m.graph.output.append(m.graph.output[0])),
        "several graph outputs called \\['y'\\]",
    ),
    "unnamed input": (
        edited(lambda m: m.graph.input.append(helper.make_tensor_value_info("", TensorProto.FLOAT, [1]))),
        "a graph input without a name",
    ),
    "output nobody computes": (
        edited(lambda m: m.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1]))),
        "no node computes: \\['z'\\]",
    ),
    "unknown element type": (edited(lambda m: setattr(m.graph.initializer[0], "data_type", 999)), "not a valid ONNX"),
    "weight too short": (
        edited(lambda m: setattr(m.graph.initializer[0], "raw_data", b"\0" * 15)),
        "tensor 'w' \\(float\\[4\\]\\) holds 15 bytes: its type and shape take 16",
    ),
    "too few elements": (
        edited(
            lambda m: m.graph.initializer[0].CopyFrom(TensorProto(name="w", dims=[4], data_type=1, float_data=[1.0]))
        ),
        "holds 1 elements: its type and shape take 4",
    ),
    "weight without a type": (edited(lambda m: m.graph.initializer[0].ClearField("data_type")), "no type"),
    "negative extent": (edited(lambda m: m.graph.initializer[0].dims.__setitem__(0, -4)), "impossible shape"),
    "external data without a path": (
        edited(lambda m: onnx.external_data_helper.set_external_data(m.graph.initializer[0], "w.bin")),
        "'w' is stored in the file 'w.bin', but the model has no path.*give the path",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_an_invalid_model_is_refused(case: str) -> None:
    proto, expected = INVALID[case]
    for source in (proto, proto.SerializeToString()):
        with pytest.raises(ModelFileError, match=expected):
            open_graph(source)


def test_an_object_of_another_kind_is_refused() -> None:
    with pytest.raises(ModelFileError, match="cannot be opened from int"):
        open_graph(3)  # type: ignore[arg-type]


# --- paths -----------------------------------------------------------------------------------------------------------


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"nowhere\.onnx' does not exist"):
        open_graph(tmp_path / "nowhere.onnx")


def test_a_directory_without_a_model_says_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"holds no .onnx file, but nothing"):
        open_graph(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelFileError, match=r"but model\.safetensors; it holds weights for another runtime"):
        open_graph(tmp_path)


def test_a_directory_with_several_models_asks_which(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        write(tmp_path / name, model().SerializeToString())
    with pytest.raises(ModelFileError, match=r"holds 2 \.onnx files: a\.onnx, b\.onnx"):
        open_graph(tmp_path)


@pytest.mark.parametrize(
    ("filename", "expected"),
    [
        ("gone.onnx", "names 'gone.onnx' as its decoder, which is not there.*model.onnx"),
        ("../model.onnx", "outside the directory"),
        (7, "model.decoder.filename' is 7.*non-empty text"),
    ],
)
def test_a_config_that_names_no_usable_file_is_refused(filename: object, expected: str, tmp_path: Path) -> None:
    write(tmp_path / "model.onnx", model().SerializeToString())
    (tmp_path / "genai_config.json").write_text(json.dumps({"model": {"decoder": {"filename": filename}}}))
    with pytest.raises(ModelFileError, match=expected):
        open_graph(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="needs a FIFO")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.onnx")
    with pytest.raises(ModelFileError, match="neither a file nor a directory"):
        open_graph(tmp_path / "model.onnx")


def test_a_file_beyond_protobufs_limit_is_refused_unread(tmp_path: Path) -> None:
    path = write(tmp_path / "model.onnx", model().SerializeToString())
    os.truncate(path, 1 << 31)  # sparse: takes no space
    with pytest.raises(ModelFileError, match=r"2,147,483,648 bytes.*save the model with external data"):
        open_graph(path)


def test_a_file_that_does_not_fit_into_memory_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "model.onnx", model().SerializeToString())
    monkeypatch.setattr(parsing, "free_memory", lambda: 100)
    with pytest.raises(InsufficientMemoryError, match="100 are free"):
        open_graph(path)
