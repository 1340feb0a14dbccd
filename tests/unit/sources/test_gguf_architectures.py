"""An imported model computes in ONNX Runtime what the GGUF file's own weights and metadata define."""

from __future__ import annotations

import json
import math
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from tiny_gguf import TOKENS, Q, Semantics, Tiny, forward, write
from tokenmill.assembly import assemble
from tokenmill.config import load_config
from tokenmill.contracts.sourcing import NoProgress
from tokenmill_strategies.sources.gguf_import.conversion import convert

IDS = [int(i) for i in np.random.default_rng(7).integers(0, len(TOKENS), 24)]


def plain(size: int, base: float = 100.0) -> np.ndarray:
    return base ** (-2.0 * np.arange(size // 2) / size)


def yarn(size: int, base: float, factor: float, context: int) -> np.ndarray:
    """Frequencies of the YaRN paper: `ramp` is 1 for pairs that turn less than once in the first context."""
    frequencies = plain(size, base)
    first, last = (size * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32.0, 1.0))
    low, high = max(math.floor(first), 0), min(math.ceil(last), size - 1)
    ramp = np.clip((np.arange(size // 2) - low) / (high - low), 0, 1)
    return frequencies / factor * ramp + frequencies * (1 - ramp)


LLAMA_DIVISORS = np.linspace(1.0, 4.0, 8)
MODELS = {
    "llama, tied, 4 bits with minima, divided frequencies": (
        Tiny(types={"": Q.Q4_1}, vectors={"rope_freqs.weight": LLAMA_DIVISORS}),
        Semantics(interleaved=True, angles=lambda layer: plain(16) / LLAMA_DIVISORS),
    ),
    "llama, untied, partly rotated, positions scaled, a type for each of q, k and v": (
        Tiny(
            tied=False,
            head_size=32,
            rotated=16,
            types={"": Q.Q8_0, "attn_k": Q.Q4_0, "attn_v": Q.Q4_1, "output": Q.Q4_1},
            metadata={"ARCH.rope.scaling.type": "linear", "ARCH.rope.scaling.factor": 2.0},
        ),
        Semantics(interleaved=True, angles=lambda layer: plain(16) / 2),
    ),
    "qwen2, biased, YaRN": (
        Tiny(
            architecture="qwen2",
            biased=True,
            types={"": Q.Q4_0},
            metadata={
                "ARCH.rope.scaling.type": "yarn",
                "ARCH.rope.scaling.factor": 4.0,
                "ARCH.rope.scaling.original_context_length": 32,
            },
        ),
        Semantics(
            interleaved=False, angles=lambda layer: yarn(16, 100.0, 4.0, 32), magnitude=1 + 0.1 * math.log(4.0)
        ),
    ),
    "qwen3, normed heads that are longer than their share": (
        Tiny(architecture="qwen3", head_size=32, head_norms=True, types={"": Q.Q4_0, "token_embd": Q.Q8_0}),
        Semantics(interleaved=False, angles=lambda layer: plain(32)),
    ),
    "gemma3, windows, two bases": (
        Tiny(
            architecture="gemma3",
            layers=7,
            head_size=32,
            kv_heads=1,
            head_norms=True,
            post_norms=True,
            types={"": Q.Q8_0, "ffn_down": Q.Q4_1},
            metadata={
                "ARCH.attention.sliding_window": 5,
                "ARCH.rope.scaling.type": "linear",
                "ARCH.rope.scaling.factor": 8.0,
            },
        ),
        Semantics(
            interleaved=False,
            angles=lambda layer: plain(32) / 8 if layer == 5 else plain(32, 10_000.0),
            gelu=True,
            embedding_scale=8.0,
            window=lambda layer: None if layer == 5 else 5,
        ),
    ),
    "llama, rounded types": (
        Tiny(
            hidden=256,
            inner=256,
            heads=8,
            head_size=32,
            types={"": Q.Q6_K, "attn_q": Q.Q4_K, "attn_k": Q.Q5_K, "attn_v": Q.F16, "ffn_up": Q.BF16, "ffn_gate": Q.Q5_1,
                   "ffn_down": Q.F32, "attn_output": Q.Q5_0},
        ),
        Semantics(interleaved=True, angles=lambda layer: plain(32)),
    ),
}  # fmt: skip


class Runtime:
    """The written directory in ONNX Runtime, all sizes from its `genai_config.json`."""

    def __init__(self, directory: Path, accuracy_level: int) -> None:
        model = onnx.load(directory / "model.onnx", load_external_data=False)
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "accuracy_level":
                    attribute.i = accuracy_level
        path = directory / f"level_{accuracy_level}.onnx"
        path.write_bytes(model.SerializeToString())
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.decoder = json.loads((directory / "genai_config.json").read_text())["model"]["decoder"]

    def step(self, ids: list[int], past: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        ports = {"key": "past_key_names", "value": "past_value_names"}
        names = {
            self.decoder["inputs"][port] % layer: self.decoder["outputs"][port.replace("past", "present")] % layer
            for layer in range(self.decoder["num_hidden_layers"])
            for port in ports.values()
        }
        empty = np.zeros((1, self.decoder["num_key_value_heads"], 0, self.decoder["head_size"]), np.float32)
        feeds = {name: past.get(name, empty) for name in names}
        length = next(iter(feeds.values())).shape[2] + len(ids)
        feeds |= {"input_ids": np.array([ids]), "attention_mask": np.ones((1, length), np.int64)}
        logits, *presents = self.session.run(["logits", *names.values()], feeds)
        return logits[0], dict(zip(names, presents, strict=True))


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest relative l2 error of a row."""
    return float((np.linalg.norm(found - wanted, axis=-1) / np.linalg.norm(wanted, axis=-1)).max())


@pytest.mark.parametrize("label", MODELS)
def test_logits_are_those_of_the_definition(label: str, tmp_path: Path) -> None:
    tiny, semantics = MODELS[label]
    path = write(tmp_path / "tiny.gguf", tiny)
    directory = tmp_path / "out"
    directory.mkdir()
    convert(path, directory, NoProgress())
    wanted = forward(path, tiny, semantics, IDS)

    # Rounding to 8 bits, of weights or of activations, is half a step of 127 for a block's largest: about 0.5 % of each
    # product's length. A layer has a chain of four, and softmax may double it: 3 % a layer, errors adding as squares.
    eight_bits = 0.03 * math.sqrt(tiny.layers)
    tolerance = eight_bits if "rounded" in label else 1e-5
    runtime = Runtime(directory, accuracy_level=0)
    logits, _ = runtime.step(IDS, {})
    assert distance(logits, wanted) < tolerance

    # The cache holds what the rest of the text needs, windows included.
    first, past = runtime.step(IDS[:17], {})
    rows = [first]
    for token in IDS[17:]:
        row, past = runtime.step([token], past)
        rows.append(row)
    assert distance(np.concatenate(rows), wanted) < tolerance

    logits, _ = Runtime(directory, accuracy_level=4).step(IDS, {})
    assert distance(logits, wanted) < eight_bits + tolerance


@pytest.mark.parametrize("label", MODELS)
def test_the_directory_runs_in_tokenmill(label: str, tmp_path: Path) -> None:
    """Found by its `genai_config.json`, step by step through a session of the reference backend."""
    tiny, semantics = MODELS[label]
    path = write(tmp_path / "tiny.gguf", tiny)
    directory = tmp_path / "out"
    directory.mkdir()
    convert(path, directory, NoProgress())
    config = load_config(env={}, overrides={"backend": {"name": "reference"}})
    with closing(assemble(directory, config)) as assembly, assembly.session() as session:
        rows = [session.decode(IDS[:9], 0)]
        rows += [session.decode([token], 9 + index) for index, token in enumerate(IDS[9:])]
    assert distance(np.concatenate(rows), forward(path, tiny, semantics, IDS)) < 0.06 * math.sqrt(tiny.layers)


def test_positions_that_are_not_rotated_give_other_logits(tmp_path: Path) -> None:
    """The comparison above would notice the rotary embedding: another base is far beyond its tolerance."""
    tiny, semantics = MODELS["qwen2, biased, YaRN"]
    path = write(tmp_path / "tiny.gguf", tiny)
    other = Semantics(interleaved=False, angles=lambda layer: plain(16, 110.0), magnitude=semantics.magnitude)
    assert distance(forward(path, tiny, other, IDS), forward(path, tiny, semantics, IDS)) > 1e-3


def test_the_report_states_what_was_rounded_and_how_far(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", MODELS["llama, rounded types"][0])
    directory = tmp_path / "out"
    directory.mkdir()
    convert(path, directory, NoProgress())
    report = {entry["type"]: entry for entry in json.loads((directory / "import_report.json").read_text())["types"]}
    assert set(report) == {"Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q5_1", "F16", "BF16", "F32"}
    assert not report["Q5_0"]["rounded"] and report["Q5_0"]["max_error"] == 0
    for name in report.keys() - {"Q5_0"}:
        assert report[name]["rounded"]
        # Half a step of 127 a side, or of 255 from end to end, which is at most twice the largest weight.
        assert 0 < report[name]["max_error"] <= 0.5 / 127 * 1.001
        assert 0 < report[name]["rms_error"] < 0.01
