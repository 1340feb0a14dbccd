"""Roles from a genai_config.json: templates over layers, optional ports, and names that do not fit."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from tokenmill.errors import ModelFileError, PortError
from tokenmill.model.loading import load_decoder
from tokenmill.model.roles import PortPair

ZOO = Path(__file__).parents[2] / "data" / "zoo"

CONFIG: dict[str, Any] = {
    "model": {
        "decoder": {
            "filename": "model.onnx",
            "inputs": {
                "input_ids": "words",
                "past_key_names": "cache_k_%d_in",
                "past_value_names": "cache_v_%d_in",
                "past_conv_names": "conv%d.in",
            },
            "outputs": {
                "logits": "scores",
                "present_key_names": "cache_k_%d_out",
                "present_value_names": "cache_v_%d_out",
                "present_conv_names": "conv%d.out",
            },
        }
    }
}

ATTENTION_LAYERS = (2, 11)
CONV_LAYERS = (0, 1, 10)


def save(directory: Path, *further_inputs: str) -> None:
    """A hybrid whose ports have unusual names: attention in layers 2 and 11, convolutions in 0, 1 and 10."""
    inputs: dict[str, tuple[int | str, ...]] = {
        "words": ("batch", "sequence"),
        **dict.fromkeys(further_inputs, ("n",)),
    }
    outputs: dict[str, tuple[int | str, ...]] = {"scores": ("batch", "sequence", 50)}
    # Sorted as text, layer 11 would come before layer 2.
    for layer in sorted(ATTENTION_LAYERS, key=str):
        for part in "vk":
            inputs[f"cache_{part}_{layer}_in"] = ("batch", 2, "past", 8)
            outputs[f"cache_{part}_{layer}_out"] = ("batch", 2, "total", 8)
    for layer in CONV_LAYERS:
        inputs[f"conv{layer}.in"] = outputs[f"conv{layer}.out"] = ("batch", 16, 3)
    graph = helper.make_graph(
        [helper.make_node("Constant", [], [name], value_float=0.0) for name in outputs],
        "hybrid",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64 if name == "words" else TensorProto.FLOAT, shape)
            for name, shape in inputs.items()
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
    )
    onnx.save(helper.make_model(graph, ir_version=8), directory / "model.onnx")


def configure(directory: Path, edit: Callable[[dict[str, Any]], object] = lambda decoder: None) -> None:
    config = copy.deepcopy(CONFIG)
    edit(config["model"]["decoder"])
    (directory / "genai_config.json").write_text(json.dumps(config))


def test_templates_expand_over_the_layers_that_have_ports(tmp_path: Path) -> None:
    save(tmp_path)
    configure(tmp_path)
    io = load_decoder(tmp_path).io
    assert (io.token_input, io.logits_output) == ("words", "scores")
    assert io.kv_pairs == tuple(
        PortPair(f"cache_{part}_{layer}_in", f"cache_{part}_{layer}_out") for layer in ATTENTION_LAYERS for part in "kv"
    )
    assert io.state_pairs == tuple(PortPair(f"conv{n}.in", f"conv{n}.out", fixed=True) for n in CONV_LAYERS)
    assert set(io.sources.values()) == {"genai_config.json"}


def test_combined_templates_pair_too(tmp_path: Path) -> None:
    shape = (2, "batch", 4, "past", 8)
    graph = helper.make_graph(
        [helper.make_node("Constant", [], [name], value_float=0.0) for name in ("logits", "kv_out_0", "kv_out_1")],
        "combined",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])]
        + [helper.make_tensor_value_info(f"kv_in_{n}", TensorProto.FLOAT, shape) for n in (0, 1)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("logits", "kv_out_0", "kv_out_1")],
    )
    onnx.save(helper.make_model(graph, ir_version=8), tmp_path / "model.onnx")
    decoder = {"inputs": {"past_names": "kv_in_%d"}, "outputs": {"present_names": "kv_out_%d"}}
    (tmp_path / "genai_config.json").write_text(json.dumps({"model": {"decoder": decoder}}))
    assert load_decoder(tmp_path).io.kv_pairs == (PortPair("kv_in_0", "kv_out_0"), PortPair("kv_in_1", "kv_out_1"))


def test_mask_and_positions_that_the_graph_lacks_are_passed_over_with_a_note(tmp_path: Path) -> None:
    save(tmp_path)
    configure(tmp_path, lambda d: d["inputs"].update(attention_mask="attention_mask", position_ids="position_ids"))
    io = load_decoder(tmp_path).io
    assert (io.attention_mask_input, io.position_ids_input) == (None, None)
    assert io.sources["position_ids_input"] == "genai_config.json names 'position_ids', which the graph lacks"


def test_other_inputs_stay_routed(tmp_path: Path) -> None:
    save(tmp_path, "cross_0")
    configure(tmp_path, lambda d: d["inputs"].update(cross_past_key_names="cross_%d", past_sequence_length="n"))
    assert "cross_0" not in {pair.past for pair in load_decoder(tmp_path).io.pairs}


def test_configuration_goes_before_the_file(tmp_path: Path) -> None:
    save(tmp_path)
    configure(tmp_path)
    io = load_decoder(tmp_path, io={"kv_inputs": ["cache_k_2_in"], "kv_outputs": ["cache_k_2_out"]}).io
    assert io.kv_pairs == (PortPair("cache_k_2_in", "cache_k_2_out"),)
    assert len(io.state_pairs) == 3
    assert (io.sources["kv_pairs"], io.sources["state_pairs"]) == ("configuration", "genai_config.json")


def test_a_config_of_another_file_says_nothing_of_this_ones_ports(tmp_path: Path) -> None:
    shutil.copytree(ZOO / "llama-int4", tmp_path, dirs_exist_ok=True)
    shutil.copy(tmp_path / "model.onnx", tmp_path / "copy.onnx")
    io = load_decoder(tmp_path / "copy.onnx").io
    assert io.sources["kv_pairs"] == "detected by name"
    assert set(io.kv_pairs) == set(load_decoder(tmp_path).io.kv_pairs)


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], object], type[Exception], str]] = {
    "ids": (lambda d: d["inputs"].update(input_ids="ids"), PortError, r"inputs\.input_ids' names 'ids'.*words: int64"),
    "logits": (lambda d: d["outputs"].update(logits="l"), PortError, r"outputs\.logits' names 'l'.*scores: float"),
    "a template without ports": (
        lambda d: d["inputs"].update(past_key_names="k.%d"),
        PortError,
        r"past_key_names' is 'k\.%d', which matches no port: the graph has .*cache_k_2_in",
    ),
    "past without present": (
        lambda d: d["outputs"].pop("present_value_names"),
        PortError,
        "lacks 'present_value_names'",
    ),
    "present without past": (
        lambda d: d["inputs"].pop("past_value_names"),
        PortError,
        r"present_value_names' has no counterpart.*add 'past_value_names'",
    ),
    "different layers": (
        lambda d: d["outputs"].update(present_key_names="conv%d.out"),
        PortError,
        r"different layers: past: \[2, 11\], present: \[0, 1, 10\]",
    ),
    "one port by two templates": (
        lambda d: (
            d["inputs"].update(past_value_names="cache_k_%d_in"),
            d["outputs"].update(present_value_names="cache_v_%d_out"),
        ),
        PortError,
        "'cache_k_2_in' has two roles",
    ),
    "two placeholders": (
        lambda d: d["inputs"].update(past_key_names="k%d_%d"),
        ModelFileError,
        r"past_key_names' is 'k%d_%d': it must be a name with at most one '%d'",
    ),
    "another placeholder": (lambda d: d["inputs"].update(past_key_names="k%s"), ModelFileError, "at most one '%d'"),
    "a number for a name": (lambda d: d["inputs"].update(input_ids=3), ModelFileError, r"inputs\.input_ids' is 3"),
    "a list of inputs": (lambda d: d.update(inputs=[]), ModelFileError, r"decoder\.inputs' is \[\].*mapping"),
    "a list of outputs": (lambda d: d.update(outputs=["a"]), ModelFileError, r"decoder\.outputs' is \['a'\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_config_that_does_not_fit_the_graph_is_refused(case: str, tmp_path: Path) -> None:
    edit, error, expected = REFUSED[case]
    save(tmp_path)
    configure(tmp_path, edit)
    with pytest.raises(error, match=expected):
        load_decoder(tmp_path)
