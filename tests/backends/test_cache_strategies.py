"""Decoders compute the same bits however the cpu backend keeps their cache: in place, or copied at each step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from decoder_graphs import decoder, merged_decoder, plain
from tokenmill.assembly import assemble
from tokenmill.config import load_config

ZOO = Path(__file__).parents[1] / "data" / "zoo"
TOKENS = [3, 17, 64, 5, 90, 41, 2, 8]


def decoded(path: Path, strategy: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Logits of a prompt, a token and a draft, before and after a rewind; the first past; bytes that are bound."""
    config = load_config(env={}, overrides={"backend": {"name": "cpu"}, "cache": {"max_len": 64, "strategy": strategy}})
    assembly = assemble(path, config)
    with assembly.session() as session:
        rows = [session.decode(TOKENS[:5], 0), session.decode(TOKENS[5:6], 5), session.verify(TOKENS[6:], 6)]
        session.rewind(5)
        rows.append(session.decode(TOKENS[5:7], 5))
        past = session.read_past(assembly.groups[0][0].ports[0].pair.past)
        bound = session.stats().context.binding_bytes
    assembly.close()
    return np.concatenate(rows), past, bound


@pytest.mark.parametrize("name", sorted(path.name for path in ZOO.iterdir()))
def test_decoders_compute_the_same_bits_however_their_cache_is_kept(name):
    chosen, copied = decoded(ZOO / name, "auto"), decoded(ZOO / name, "copied")
    assert np.array_equal(chosen[0], copied[0]) and np.array_equal(chosen[1], copied[1])
    assert copied[2] == 0


@pytest.mark.parametrize("name", ["optimum-gpt2", "optimum-llama", "optimum-qwen2"])
def test_exported_decoders_append_in_place(name):
    assert decoded(ZOO / name, "in_place")[2] > 0


@pytest.mark.parametrize("model", [decoder(plain), merged_decoder()], ids=["plain", "merged"])
def test_so_do_plain_and_branching_graphs(model, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    in_place, copied = decoded(path, "in_place"), decoded(path, "copied")
    assert np.array_equal(in_place[0], copied[0]) and np.array_equal(in_place[1], copied[1])
    assert in_place[2] > 0 and copied[2] == 0
