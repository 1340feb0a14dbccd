"""What loading will need, and what is free, compared before anything is read."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from onnx import TensorProto, helper
from tokenmill.errors import InsufficientMemoryError
from tokenmill.model import memory
from tokenmill.model.loading import load_decoder, open_graph
from tokenmill.model.memory import check_memory, estimate_memory, free_memory

ZOO = Path(__file__).parents[2] / "data" / "zoo"


def test_the_weights_are_counted_from_their_shapes() -> None:
    directory = ZOO / "llama-fp32"
    need = estimate_memory(load_decoder(directory).graph, cache_bytes=1000)
    stored = (directory / "model.onnx.data").stat().st_size
    inline = (directory / "model.onnx").stat().st_size
    assert stored <= need.weights <= stored + inline
    assert need.packing == 512 * 64 * 4  # the embedding and the head: [vocab 512, hidden 64] float32
    assert need.total == need.weights + need.packing + 1000


def test_what_fits_passes_to_the_byte() -> None:
    graph = load_decoder(ZOO / "llama-int4").graph
    need = check_memory(graph, 1 << 20, free_bytes=1 << 30)
    assert check_memory(graph, 1 << 20, free_bytes=need.total) == need
    with pytest.raises(InsufficientMemoryError):
        check_memory(graph, 1 << 20, free_bytes=need.total - 1)


def test_the_setting_that_helps_is_named() -> None:
    graph = load_decoder(ZOO / "llama-int4").graph
    with pytest.raises(InsufficientMemoryError, match=r"cache 4,096\.0 MiB; lower cache\.max_len"):
        check_memory(graph, 1 << 32, free_bytes=1 << 30)
    with pytest.raises(InsufficientMemoryError, match=r"smaller or quantized weights.*lowering cache\.max_len is not"):
        check_memory(graph, 1 << 32, free_bytes=1000)


def test_a_model_larger_than_the_machine_is_refused_without_reading_it(tmp_path: Path) -> None:
    size = psutil.virtual_memory().total * 2 // 4 * 4
    (tmp_path / "w.bin").touch()
    os.truncate(tmp_path / "w.bin", size)  # sparse: takes no space
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[size // 4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])],
        "large",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [tensor],
    )
    (tmp_path / "model.onnx").write_bytes(helper.make_model(graph, ir_version=8).SerializeToString())
    before = psutil.Process().memory_info().rss
    with pytest.raises(InsufficientMemoryError, match="loading needs"):
        check_memory(open_graph(tmp_path), 0)
    assert psutil.Process().memory_info().rss - before < 64 << 20


# --- control groups: files as the kernel writes them -----------------------------------------------------------------


def group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def allowances(tmp_path: Path, membership: str) -> list[int]:
    (tmp_path / "cgroup").write_text(membership)
    return list(memory._group_allowances(tmp_path / "cgroup", tmp_path / "fs"))


def test_every_group_up_to_the_root_limits(tmp_path: Path) -> None:
    statistics = "anon 100\ninactive_file 30\nactive_file 20\nfile 70"
    group(tmp_path / "fs" / "a" / "b", memory__max="max", memory__current=500, memory__stat=statistics)
    group(tmp_path / "fs" / "a", memory__max=1000, memory__current=600, memory__stat=statistics)
    # The root has no limit file; 50 of the 600 are cached file pages, which the kernel gives back.
    assert allowances(tmp_path, "0::/a/b\n") == [1000 - (600 - 50)]


def test_version_1_groups_are_read(tmp_path: Path) -> None:
    group(
        tmp_path / "fs" / "memory" / "job",
        memory__limit_in_bytes=1000,
        memory__usage_in_bytes=1200,
        memory__stat="inactive_file 0",
    )
    assert allowances(tmp_path, "5:cpu,cpuacct:/job\n4:memory:/job\n") == [0]


def test_machines_without_groups_have_no_limit(tmp_path: Path) -> None:
    assert list(memory._group_allowances(tmp_path / "nothing", tmp_path)) == []
    assert allowances(tmp_path, "0::/gone\nnonsense\n") == []


def test_free_memory_is_a_part_of_the_machines() -> None:
    assert 0 < free_memory() <= psutil.virtual_memory().total


# --- costs -----------------------------------------------------------------------------------------------------------


def test_opening_a_decoder_again_is_quick() -> None:
    load_decoder(ZOO / "lfm2-int4")  # imports the graph library
    start = time.perf_counter()
    load_decoder(ZOO / "lfm2-int4")
    # 6 ms on two busy cores; half a second is the bound for a model of 30 layers.
    assert time.perf_counter() - start < 0.5


def test_importing_the_package_loads_no_graph_library() -> None:
    code = """
        import sys
        import tokenmill.model.geometry, tokenmill.model.loading, tokenmill.model.memory
        print(sorted({"onnx", "onnx_ir", "sympy", "yaml"} & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
