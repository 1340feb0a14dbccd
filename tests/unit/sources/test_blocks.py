"""Weights of a GGUF file as blocks of codes: carried over without loss, or rounded to the nearest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter, ReaderTensor, dequantize
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_gguf import Q, stored
from tokenmill.errors import SourceError
from tokenmill_strategies.sources.gguf_import.blocks import Blocks, read_blocks

Written = Callable[..., ReaderTensor]


def tensor(path: Path, data: np.ndarray, kind: Q) -> ReaderTensor:
    """`data`, as the format stores it, written to a file and read again."""
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.attn_q.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFReader(path).tensors[0]


def weights(rows: int = 40, columns: int = 256, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


@pytest.mark.parametrize("kind", [Q.Q4_0, Q.Q5_0, Q.Q8_0], ids=lambda kind: kind.name)
def test_symmetric_types_are_carried_over_to_the_bit(kind: Q, tmp_path: Path) -> None:
    found = tensor(tmp_path / "w.gguf", stored(weights(), kind, np.random.default_rng(1)), kind)
    blocks = read_blocks(found)
    assert blocks.bits == (4 if kind is Q.Q4_0 else 8) and blocks.zero_points is None
    np.testing.assert_array_equal(blocks.values(), dequantize(found.data, kind))


def q4_1(d: np.ndarray, m: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """One block a row: scale, minimum, and 32 codes, of which the second 16 are the high halves."""
    packed = (codes[:, :16] | codes[:, 16:] << 4).astype(np.uint8)
    head = np.stack([d, m], axis=1).astype(np.float16).view(np.uint8)
    return np.concatenate([head, packed], axis=1)


def extremes(d: np.ndarray, m: np.ndarray) -> np.ndarray:
    """The largest magnitude that a block of this scale and minimum can hold."""
    d, m = d.astype(np.float16).astype(np.float64), m.astype(np.float16).astype(np.float64)
    return np.maximum(np.abs(m), np.abs(m + 15 * d))


def check_q4_1(path: Path, d: np.ndarray, m: np.ndarray, codes: np.ndarray, ulps: int = 1) -> Blocks:
    """Within some float32 ulps of the largest weight that the block can hold.

    The zero point -m/d is rounded once, and so is its difference with a code: near it a weight cancels, so that the
    error cannot be counted in the weight's own ulps.
    """
    found = tensor(path, q4_1(d, m, codes), Q.Q4_1)
    blocks = read_blocks(found)
    exact = dequantize(found.data, Q.Q4_1).astype(np.float64)
    ulp = np.spacing(extremes(d, m).astype(np.float32)).astype(np.float64)
    assert (np.abs(blocks.values() - exact) <= ulps * ulp[:, None]).all()
    assert blocks.bits == 4 and blocks.zero_points is not None and blocks.zero_points.dtype == np.float32
    return blocks


def test_types_with_a_minimum_are_carried_over_within_one_ulp(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    d, codes = rng.uniform(0.001, 0.3, 50_000), rng.integers(0, 16, (50_000, 32))
    check_q4_1(tmp_path / "a.gguf", d, -d * rng.uniform(0, 15, d.shape), codes)
    check_q4_1(tmp_path / "b.gguf", d, d * rng.uniform(-40, 40, d.shape), codes)
    check_q4_1(tmp_path / "c.gguf", -d, d * rng.uniform(0, 15, d.shape), codes)


def test_a_block_of_scale_zero_is_its_minimum_throughout(tmp_path: Path) -> None:
    d, m = np.zeros(4), np.array([0.5, -3.0, 0.0, 65504.0])
    blocks = check_q4_1(tmp_path / "w.gguf", d, m, np.random.default_rng(3).integers(0, 16, (4, 32)))
    np.testing.assert_array_equal(blocks.values(), np.repeat(m.astype(np.float32)[:, None], 32, axis=1))


@settings(max_examples=60, deadline=None)
@given(d=st.floats(-8, 8, width=16), m=st.floats(-60000, 60000, width=16), seed=st.integers(0, 9))
def test_a_range_far_from_zero_is_carried_over_within_two(
    d: float, m: float, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    codes = np.random.default_rng(seed).integers(0, 16, (1, 32))
    check_q4_1(tmp_path_factory.mktemp("w") / "w.gguf", np.array([d]), np.array([m]), codes, ulps=2)


@pytest.mark.parametrize("kind", [Q.Q5_1, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.F16, Q.BF16, Q.F32], ids=lambda kind: kind.name)
def test_other_types_are_rounded_to_the_nearest_code(kind: Q, tmp_path: Path) -> None:
    found = tensor(tmp_path / "w.gguf", stored(weights(5000), kind, np.random.default_rng(4)), kind)
    blocks = read_blocks(found)
    assert blocks.bits == 8
    exact = np.asarray(dequantize(found.data, kind), np.float64).reshape(5000, -1, 32)
    error = np.abs(blocks.values().reshape(exact.shape) - exact)
    if blocks.zero_points is None:
        step = np.abs(exact).max(-1) / 127
    else:
        assert blocks.zero_points.dtype == np.uint8
        step = (np.maximum(exact.max(-1), 0) - np.minimum(exact.min(-1), 0)) / 255
    # Half a step, and with a rounded zero point at most a whole one at the ends of the range.
    assert (error <= step[..., None] * (0.5 if blocks.zero_points is None else 1.0) * (1 + 1e-5)).all()
    assert (error > step[..., None] * 0.501).mean() < 0.02


@pytest.mark.parametrize("kind", [Q.Q5_1, Q.F32], ids=lambda kind: kind.name)
def test_blocks_of_zeros_stay_zeros(kind: Q, tmp_path: Path) -> None:
    zeros = stored(np.zeros((2, 64), np.float32), kind, np.random.default_rng(5))
    assert not read_blocks(tensor(tmp_path / "w.gguf", zeros, kind)).values().any()


def test_the_first_of_two_codes_is_in_the_low_bits(tmp_path: Path) -> None:
    blocks = check_q4_1(tmp_path / "w.gguf", np.ones(1), np.full(1, -8.0), np.arange(32)[None] % 16)
    assert blocks.packed.shape == (1, 1, 16)
    np.testing.assert_array_equal(blocks.packed[0, 0, :8], [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("kind", [Q.Q4_1, Q.Q8_0, Q.F32, Q.Q5_1], ids=lambda kind: kind.name)
def test_weights_that_are_not_finite_are_refused(kind: Q, value: float, tmp_path: Path) -> None:
    data = np.ascontiguousarray(stored(weights(2, 64), kind, np.random.default_rng(6)))
    data.view(np.float32 if kind is Q.F32 else np.float16)[0, 0] = value
    with pytest.raises(SourceError, match=r"'blk\.0\.attn_q\.weight' has weights that are not finite"):
        read_blocks(tensor(tmp_path / "w.gguf", data, kind))


def test_other_types_are_refused_by_name(tmp_path: Path) -> None:
    found = tensor(tmp_path / "w.gguf", np.zeros((2, 84), np.uint8), Q.Q2_K)
    with pytest.raises(SourceError, match=r"has the type Q2_K, which cannot be imported: known are Q4_0, .*F32"):
        read_blocks(found)


def test_rows_that_are_no_whole_blocks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="rows of 40 weights: weights are kept in blocks of 32"):
        read_blocks(tensor(tmp_path / "w.gguf", weights(2, 40), Q.F32))
