"""Weights in files of their own: everything that would read foreign memory, or a foreign file, is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from tokenmill.errors import ModelFileError
from tokenmill.model.loading import open_graph


def external(location: str, *, offset: int | None = None, length: int | None = None, shape: tuple[int, ...] = (4,)):
    """A float tensor `w` that says where its data is."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    return tensor


def save(directory: Path, tensor: TensorProto) -> Path:
    """`y = x + w` in a file of `directory`."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "add",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [tensor],
    )
    directory.mkdir(exist_ok=True)
    path = directory / "model.onnx"
    path.write_bytes(helper.make_model(graph, ir_version=8).SerializeToString())
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a 16-byte weight file, and a secret beside the directory."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "w.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    (tmp_path / "secret.bin").write_bytes(b"secret, sixteen.")
    return tmp_path / "model"


def test_offset_and_length_are_optional(directory: Path) -> None:
    for tensor in (external("w.bin"), external("w.bin", offset=0, length=16), external("./w.bin", length=16)):
        graph = open_graph(save(directory, tensor))
        value = graph.model.graph.initializers["w"].const_value
        assert value is not None
        np.testing.assert_array_equal(value.numpy(), np.arange(4, dtype=np.float32))


def test_a_link_inside_the_directory_is_followed(directory: Path) -> None:
    (directory / "link.bin").symlink_to("w.bin")
    open_graph(save(directory, external("link.bin", length=16)))


def test_a_relative_model_path_survives_a_change_of_directory(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(directory, external("w.bin", length=16))
    monkeypatch.chdir(directory)
    graph = open_graph("model.onnx")
    monkeypatch.chdir(tmp_path)
    value = graph.model.graph.initializers["w"].const_value
    assert value is not None
    assert value.numpy()[3] == 3


REFUSED = {
    "missing": (external("gone.bin", length=16), "tensor 'w' is stored in 'gone.bin', but .* does not exist"),
    "a directory": (external(".", length=16), "is not a file"),
    "no location": (external("", length=16), "names no file"),
    "truncated": (external("w.bin", offset=4, length=16), r"takes the bytes 4 to 20, the file ends at 16"),
    "truncated without length": (external("w.bin", shape=(5,)), r"takes the bytes 0 to 20, the file ends at 16"),
    "offset behind the end": (external("w.bin", offset=1 << 40), "the file ends at 16"),
    "length too short": (external("w.bin", length=8), "declares 8 bytes, its type and shape take 16"),
    "length too long": (external("w.bin", length=17), "declares 17 bytes"),
    "negative offset": (external("w.bin", offset=-4, length=16), "not a valid ONNX model: .*-4"),
    "shape of exabytes": (external("w.bin", shape=(1 << 40, 1 << 20)), "the file ends at 16"),
    "negative extent": (external("w.bin", shape=(-4, -1)), "impossible shape"),
    "parent directory": (external("../secret.bin", length=16), "outside the model's directory"),
    "parent through a folder": (external("x/../../secret.bin", length=16), "outside the model's directory"),
    "absolute": (external("/etc/passwd", length=16), "absolute path.*must lie inside"),
    "absolute on Windows": (external("C:\\secret.bin", length=16), "absolute path"),
    "network share": (external("\\\\host\\secret.bin", length=16), "absolute path"),
    "offset is no number": (external("w.bin", offset="zero"), "not a valid ONNX model"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_tensor_that_leads_astray_is_refused_before_it_is_mapped(case: str, directory: Path) -> None:
    tensor, expected = REFUSED[case]
    with pytest.raises(ModelFileError, match=expected):
        open_graph(save(directory, tensor))


def test_a_link_out_of_the_directory_is_refused(directory: Path, tmp_path: Path) -> None:
    (directory / "link.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(ModelFileError, match=r"leads to '.*secret\.bin': that is outside"):
        open_graph(save(directory, external("link.bin", length=16)))


def test_a_link_to_itself_is_refused(directory: Path) -> None:
    (directory / "loop.bin").symlink_to("loop.bin")
    with pytest.raises(ModelFileError, match=r"loop\.bin"):
        open_graph(save(directory, external("loop.bin", length=16)))


def test_a_hard_link_is_refused_with_the_way_out(directory: Path, tmp_path: Path) -> None:
    os.link(tmp_path / "secret.bin", directory / "hard.bin")
    with pytest.raises(ModelFileError, match=r"2 hard links.*copy the file"):
        open_graph(save(directory, external("hard.bin", length=16)))


def test_a_pointer_in_place_of_the_weights_is_named(directory: Path) -> None:
    (directory / "w.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4000\n")
    with pytest.raises(ModelFileError, match=r"git-lfs pointer.*git lfs pull"):
        open_graph(save(directory, external("w.bin", length=4000, shape=(1000,))))


def test_weights_that_begin_like_text_are_still_weights(directory: Path) -> None:
    (directory / "w.bin").write_bytes(b'{"text": 1234567')
    open_graph(save(directory, external("w.bin", length=16)))


def test_constants_of_nodes_subgraphs_and_functions_are_checked_too(directory: Path) -> None:
    constant = helper.make_node("Constant", [], ["w"], value=external("../secret.bin", length=16))
    output = helper.make_tensor_value_info("w", TensorProto.FLOAT, [4])
    body = helper.make_graph([constant], "body", [], [output])
    branches = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    call = helper.make_node("Weights", [], ["y"], domain="local")
    function = helper.make_function("local", "Weights", [], ["w"], [constant], [helper.make_opsetid("", 18)])
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    models = [
        helper.make_model(helper.make_graph([constant], "g", [condition], [output]), ir_version=8),
        helper.make_model(helper.make_graph([branches], "g", [condition], [result]), ir_version=8),
        helper.make_model(
            helper.make_graph([call], "g", [condition], [result]),
            functions=[function],
            opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("local", 1)],
            ir_version=8,
        ),
    ]
    for proto in models:
        (directory / "model.onnx").write_bytes(proto.SerializeToString())
        with pytest.raises(ModelFileError, match="outside the model's directory"):
            open_graph(directory / "model.onnx")


def test_a_graph_library_model_keeps_its_own_base_directory(directory: Path) -> None:
    model = onnx_ir.load(save(directory, external("w.bin", length=16)))
    assert open_graph(model).path is None
    (directory / "w.bin").write_bytes(b"short")
    with pytest.raises(ModelFileError, match="the file ends at 5"):
        open_graph(model)


def test_a_moved_exporter_model_without_its_data_is_refused(tmp_path: Path) -> None:
    zoo = Path(__file__).parents[2] / "data" / "zoo" / "llama-int4"
    shutil.copy(zoo / "model.onnx", tmp_path)
    with pytest.raises(ModelFileError, match=r"'model\.onnx\.data', but .* does not exist.*fetch the weights too"):
        open_graph(tmp_path)
    data = (zoo / "model.onnx.data").read_bytes()
    (tmp_path / "model.onnx.data").write_bytes(data[:-1])
    with pytest.raises(ModelFileError, match=f"the file ends at {len(data) - 1:,}.*truncated"):
        open_graph(tmp_path)


def test_a_large_sparse_weight_file_is_not_read(directory: Path) -> None:
    (directory / "w.bin").touch()
    os.truncate(directory / "w.bin", 1 << 36)  # 64 GiB that take no space
    graph = open_graph(save(directory, external("w.bin", shape=(1 << 34,))))
    value = graph.model.graph.initializers["w"].const_value
    assert value is not None
    assert value.nbytes == 1 << 36


def test_the_inline_form_gives_the_same_weights(directory: Path) -> None:
    inline = open_graph(save(directory, numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")))
    value = inline.model.graph.initializers["w"].const_value
    assert value is not None
    np.testing.assert_array_equal(value.numpy(), np.arange(4, dtype=np.float32))
    assert onnx.load(directory / "model.onnx").graph.initializer[0].name == "w"
