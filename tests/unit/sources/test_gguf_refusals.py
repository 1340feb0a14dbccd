"""GGUF files that cannot be imported: what is said, and that nothing is left behind."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from tiny_gguf import Q, Tiny, write
from tokenmill.contracts.sourcing import NoProgress
from tokenmill.errors import SourceError
from tokenmill_strategies.sources.gguf_file import GgufSource
from tokenmill_strategies.sources.gguf_import.conversion import convert


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def refusal(path: Path) -> str:
    with pytest.raises(SourceError) as caught:
        GgufSource().resolve(str(path), NoProgress())
    directory = path.parent / "home" / "imported"
    assert [found.suffix for found in directory.iterdir()] == [".lock"] if directory.exists() else True
    return str(caught.value)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGML" * 20, b"not a model at all", bytes(200)])
def test_a_file_of_another_format(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert re.search(r"model\.gguf' cannot be read: .+; fetch the file again", refusal(path))


def test_a_file_cut_anywhere(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.gguf", Tiny()).read_bytes()
    path = tmp_path / "cut.gguf"
    for part in range(60):
        path.write_bytes(whole[: len(whole) * part // 60])
        assert "cut.gguf'" in refusal(path)


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf", Tiny())
    assert re.search(
        r"'.*tinny\.gguf' is not a file: .* holds tiny\.gguf; did you mean '.*tiny\.gguf'",
        refusal(tmp_path / "tinny.gguf"),
    )


@pytest.mark.parametrize(
    ("tiny", "message"),
    [
        (Tiny(architecture="rwkv9"), r"architecture 'rwkv9', .* known are gemma3, llama, qwen2, qwen3"),
        (Tiny(metadata={"split.count": 3}), "is one of 3 parts"),
        (Tiny(metadata={"ARCH.expert_count": 8}), "a mixture of 8 experts"),
        (Tiny(metadata={"ARCH.block_count": None}), "lacks 'llama.block_count'"),
        (Tiny(metadata={"ARCH.block_count": 3}), r"lacks the tensor 'blk\.2\.attn_norm\.weight'"),
        (Tiny(metadata={"ARCH.block_count": 1}), r"has \d+ tensors that are not known of llama models: blk\.1\."),
        (
            Tiny(vectors={"blk.0.attn_sinks.weight": [1.0]}),
            r"1 tensors that are not known .* blk\.0\.attn_sinks\.weight",
        ),
        (
            Tiny(metadata={"ARCH.feed_forward_length": 64}),
            r"'blk\.0\.ffn_gate\.weight' of shape \[96, 64\]: .* \[64, 64\]",
        ),
        (Tiny(metadata={"ARCH.attention.head_count_kv": 3}), "4 heads: they must be a multiple"),
        (Tiny(metadata={"ARCH.attention.head_count_kv": [2, 1]}), "it must be one whole number for all layers"),
        (Tiny(metadata={"ARCH.attention.value_length": 8}), "keys of length 16, values of 8"),
        (Tiny(metadata={"ARCH.attention.key_length": 0, "ARCH.attention.value_length": 0}), "heads of size 0"),
        (Tiny(metadata={"ARCH.context_length": 1 << 31}), "a context of 2147483648 tokens: .* may have 1 to 4194304"),
        (Tiny(metadata={"ARCH.block_count": 1 << 31}), "has 2147483648 layers, .*: it has 20 tensors"),
        (Tiny(metadata={"ARCH.rope.freq_base": 0.0}), r"'llama\.rope\.freq_base' = 0\.0"),
        (Tiny(metadata={"ARCH.rope.freq_base": math.nan}), "= nan: it must be finite"),
        (Tiny(vectors={"rope_freqs.weight": [1.0] * 7 + [0.0]}), "not all above 0"),
        (Tiny(metadata={"ARCH.attention.layer_norm_rms_epsilon": "small"}), "= small: it must be a number"),
        (
            Tiny(metadata={"ARCH.rope.scaling.type": "longrope", "ARCH.rope.scaling.factor": 2.0}),
            "by 'longrope': known are",
        ),
        (Tiny(metadata={"ARCH.rope.dimension_count": 18}), "rotates 18 of 16"),
        (
            Tiny(types={"": Q.Q8_0, "ffn_up": Q.TQ1_0}, hidden=256),
            "the type TQ1_0, which cannot be imported: known are Q4_0",
        ),
        (
            Tiny(vectors={"blk.0.attn_q.bias": np.full(64, np.nan)}),
            r"'blk\.0\.attn_q\.bias' has weights that are not finite",
        ),
        (
            Tiny(
                architecture="gemma3",
                head_norms=True,
                metadata={"ARCH.attention.sliding_window": 4, "ARCH.attention.sliding_window_pattern": [True]},
            ),
            "of 1 layers whether they have a window: it has 2",
        ),
    ],
)
def test_a_model_of_another_form(tiny: Tiny, message: str, tmp_path: Path) -> None:
    assert re.search(message, refusal(write(tmp_path / "tiny.gguf", tiny)))


def test_layers_may_say_the_same_number_each(tmp_path: Path) -> None:
    tiny: Any = Tiny(metadata={"ARCH.attention.head_count_kv": [2, 2]})
    assert GgufSource().resolve(str(write(tmp_path / "tiny.gguf", tiny)), NoProgress()).is_dir()


def test_any_damage_to_the_metadata_is_refused_or_harmless(tmp_path: Path) -> None:
    """Bits flipped at random places before the weights: never another error than the one of sources."""
    whole = write(tmp_path / "whole.gguf", Tiny()).read_bytes()
    metadata = len(whole) - sum(int(tensor.n_bytes) for tensor in GGUFReader(tmp_path / "whole.gguf").tensors)
    rng = random.Random(0)
    refused = 0
    for attempt in range(150):
        damaged = bytearray(whole)
        damaged[rng.randrange(metadata)] ^= 1 << rng.randrange(8)
        path, directory = tmp_path / "damaged.gguf", tmp_path / str(attempt)
        path.write_bytes(damaged)
        directory.mkdir()
        try:
            convert(path, directory, NoProgress())
        except SourceError:
            refused += 1
    assert refused > 20
