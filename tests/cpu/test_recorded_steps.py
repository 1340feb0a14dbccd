"""Repeated steps are recorded and replayed: they give the bits of steps that are not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tokenmill_cpu.context
from tokenmill.assembly import Assembly, assemble
from tokenmill.config import load_config
from tokenmill.errors import StepError, TokenmillError
from tokenmill.session.session import Session
from tokenmill_cpu.frame import Frame

ZOO = Path(__file__).parents[1] / "data" / "zoo"
TOKENS = np.random.default_rng(2).integers(2, 90, 200).tolist()


def opened(name: str, max_len: int = 128) -> Assembly:
    return assemble(
        ZOO / name, load_config(env={}, overrides={"backend": {"name": "cpu"}, "cache": {"max_len": max_len}})
    )


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Launches of every replay."""
    counts: list[int] = []
    replay = Frame.replay

    def counted(frame: Frame, recording: object) -> None:
        counts.append(recording.count)  # type: ignore[attr-defined]
        replay(frame, recording)  # type: ignore[arg-type]

    monkeypatch.setattr(Frame, "replay", counted)
    return counts


def walked(session: Session) -> Iterator[np.ndarray]:
    """Every kind of step, repeated, with prompts and rewinds between them."""
    yield session.decode(TOKENS[:9], 0)
    for _ in range(5):
        yield session.decode([TOKENS[session.length]], session.length)
    for _ in range(4):
        yield session.verify(TOKENS[session.length : session.length + 3], session.length)
    session.rewind(12)
    for _ in range(4):
        yield session.decode([TOKENS[session.length + 50]], session.length, want="last")
    yield session.decode(TOKENS[60:90], session.length)
    for _ in range(4):
        yield np.array(session.decode([TOKENS[session.length]], session.length, want="token"))
    session.reset()
    yield session.decode(TOKENS[:2], 0)
    for _ in range(3):
        yield session.decode([TOKENS[session.length]], session.length)


@pytest.mark.parametrize("name", sorted(path.name for path in ZOO.iterdir()))
def test_replayed_steps_give_the_same_bits(name, replays, monkeypatch):
    assembly = opened(name)
    with assembly.session() as session:
        replayed = list(walked(session))
    assert replays, "no step was replayed"
    replays.clear()
    monkeypatch.setattr(tokenmill_cpu.context, "_FEW_ROWS", 0)
    with assembly.session() as session:
        for index, (row, plain) in enumerate(zip(replayed, walked(session), strict=True)):
            assert np.array_equal(row, plain), f"step {index}"
    assert not replays


def test_the_layers_of_a_decoder_are_one_replay(replays):
    with opened("llama-int4").session() as session:
        for token in TOKENS[:6]:
            session.decode([token], session.length, want="token")
    assert len(replays) == 4 and min(replays) > 10


def test_results_of_a_replay_are_not_overwritten_by_the_next(replays):
    with opened("llama-fp32").session() as session:
        session.decode(TOKENS[:4], 0)
        rows = [session.decode([token], session.length, want="last") for token in TOKENS[4:9]]
        kept = [row.copy() for row in rows]
        session.decode([7], session.length, want="last")
    assert len(replays) == 4
    assert all(np.array_equal(row, copy) for row, copy in zip(rows, kept, strict=True))


def test_two_sessions_replay_steps_of_their_own(replays):
    assembly = opened("qwen2-fp32")
    with assembly.session() as alone:
        expected = [alone.decode([token], alone.length) for token in TOKENS[:8]]
        other = [alone.decode([token], alone.length) for token in TOKENS[8:16]]
    with assembly.session() as one, assembly.session() as two:
        for index in range(8):
            assert np.array_equal(one.decode([TOKENS[index]], one.length), expected[index])
            two.decode([TOKENS[index]], two.length)
        for index in range(8):
            assert np.array_equal(two.decode([TOKENS[8 + index]], two.length), other[index])


def test_a_full_cache_refuses_a_replay_and_the_session_goes_on(replays):
    with opened("llama-fp32", max_len=8).session() as session:
        for token in TOKENS[:8]:
            session.decode([token], session.length)
        assert replays
        with pytest.raises(StepError):
            session.decode([1], 8)
        session.rewind(4)
        again = session.decode([TOKENS[4]], 4)
        assert session.length == 5 and np.isfinite(again).all()


def test_a_token_out_of_the_vocabulary_between_replays_is_refused(replays):
    with opened("llama-fp32").session() as session:
        before = [session.decode([token], session.length) for token in TOKENS[:5]]
        with pytest.raises(TokenmillError):
            session.decode([10**6], session.length)
        session.rewind(4)
        assert np.array_equal(session.decode([TOKENS[4]], 4), before[4])
