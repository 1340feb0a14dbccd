"""What `Session.decode` and `verify` give, refuse and leave as it was."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from counting import POISON, VOCAB, Counting, expected_rows, open_session
from onnx import TensorProto
from tokenmill.errors import CapacityError, NonFiniteError, OutputError, SessionClosedError, StepError
from tokenmill.session import Session

PROMPT = [3, 5, 7, 30, 2, 9]
SHAPES = [{}, {"recurrent": True}, {"recurrent": True, "growing": False}, {"mask": True}]


def state(session: Session) -> dict[str, Any]:
    """Everything a failed call has to leave alone."""
    pasts = [port for port in ("past.0.key", "past.0.state") if port in session._cache._owners]
    return {
        "length": session.length,
        "tokens": session.tokens,
        "hidden": None if session.last_hidden is None else session.last_hidden.tolist(),
        **{port: session.read_past(port).tolist() for port in pasts},
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_tokens_in_one_step_in_pieces_and_one_by_one_give_the_same_rows(shape: dict[str, bool]) -> None:
    expected = expected_rows(PROMPT)
    for pieces in ([6], [1, 5], [2, 3, 1], [1] * 6):
        with open_session(Counting(**shape).graph()) as session:
            rows, fed = [], 0
            for count in pieces:
                rows.append(session.decode(PROMPT[fed : fed + count], fed))
                fed += count
            assert np.array_equal(np.concatenate(rows), expected)
            assert session.length == 6 and session.tokens == tuple(PROMPT)
            assert session.last_hidden is not None
            assert session.last_hidden.tolist() == [sum(PROMPT)] * 4


def test_each_want_is_of_the_last_token() -> None:
    with open_session(Counting().graph()) as session:
        last = session.decode(PROMPT, 0, want="last")
        assert last.dtype == np.float32 and np.array_equal(last, expected_rows(PROMPT)[-1])
        assert session.decode([4], 6, want="token") == (sum(PROMPT) + 4) % VOCAB
        assert isinstance(session.decode([4], 7, want="token"), int)
        rows = session.decode([4], 8)
        assert rows.shape == (1, VOCAB) and rows.dtype == np.float32


def test_the_lowest_id_wins_a_tie() -> None:
    """Half a token more than a whole one: two ids are equally near."""
    with open_session(Counting(more=["half"]).graph()) as session:
        assert session.decode([6], 0, want="token", routed=[("half", np.array([0.5], np.float32))]) == 6


def test_results_are_the_callers_own() -> None:
    with open_session(Counting().graph()) as session:
        first = session.decode(PROMPT, 0)
        kept = first.copy()
        session.decode([1], 6)
        assert np.array_equal(first, kept) and first.flags.writeable


# --- refused before anything runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "past", "text"),
    [
        ([], 2, "at least one token"),
        (np.zeros(0, np.int64), 2, "at least one token"),
        ([1], 0, "past_len is 0, the session holds 2 tokens"),
        ([1], 3, "past_len is 3, the session holds 2 tokens"),
        ([[1, 2]], 2, "flat list of integers"),
        ([1.5], 2, "flat list of integers"),
        (["1"], 2, "flat list of integers"),
        (3, 2, "flat list of integers"),
        ([1, VOCAB], 2, f"token {VOCAB} at index 1 is out of the vocabulary: ids go from 0 to {VOCAB - 1}"),
        ([-1], 2, "token -1 at index 0 is out of the vocabulary"),
        ([1 << 40], 2, "is out of the vocabulary"),
    ],
)
def test_a_refused_step_runs_and_changes_nothing(tokens: Any, past: int, text: str) -> None:
    with open_session(Counting().graph()) as session:
        session.decode([3, 4], 0)
        before, runs = state(session), session.stats().context.runs
        for call in (session.decode, session.verify):
            with pytest.raises(StepError, match=text):
                call(tokens, past)
        assert state(session) == before and session.stats().context.runs == runs
        assert session.decode([5], 2, want="token") == 12


def test_an_unknown_want_is_refused() -> None:
    with open_session(Counting().graph()) as session, pytest.raises(StepError, match="one of token, last, rows"):
        session.decode([1], 0, want="all")  # type: ignore[arg-type]


def test_a_stated_bound_is_kept_and_none_lets_copies_grow() -> None:
    with open_session(Counting().graph(), **{"cache.max_len": 4}) as session:
        assert session.max_context == 4
        session.decode([1, 2, 3], 0)
        before, runs = state(session), session.stats().context.runs
        with pytest.raises(CapacityError, match=r"2 tokens behind 3 make 5, the cache holds 4; raise cache\.max_len"):
            session.decode([1, 2], 3)
        assert state(session) == before and session.stats().context.runs == runs
        session.decode([4], 3)
    with open_session(Counting().graph(), capacity=4) as session:
        assert session.max_context is None
        session.decode([1] * 9, 0)


def test_a_closed_session_says_so() -> None:
    session = open_session(Counting().graph())
    session.decode([1], 0)
    session.close()
    session.close()
    for call in (
        lambda: session.decode([1], 1),
        lambda: session.verify([1], 1),
        lambda: session.rewind(0),
        session.reset,
        session.mark,
        lambda: session.read_past("past.0.key"),
    ):
        with pytest.raises(SessionClosedError):
            call()


# --- logits as graphs shape them -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["rows", "flat"])
@pytest.mark.parametrize("element", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_every_float_type_comes_as_float32(shape: str, element: int) -> None:
    """Whole numbers up to 31 are exact in each."""
    with open_session(Counting(logits=shape, logits_element=element).graph()) as session:
        rows = session.decode(PROMPT, 0)
        assert rows.dtype == np.float32 and np.array_equal(rows, expected_rows(PROMPT))
        assert session.decode([4], 6, want="token") == (sum(PROMPT) + 4) % VOCAB


@pytest.mark.parametrize("element", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_caches_of_16_bits(element: int) -> None:
    with open_session(Counting(recurrent=True, element=element).graph()) as session:
        assert np.array_equal(session.decode(PROMPT, 0), expected_rows(PROMPT))
        wanted = np.float16 if element == TensorProto.FLOAT16 else ml_dtypes.bfloat16
        assert session.read_past("past.0.key").dtype == wanted and session.read_past("past.0.state").dtype == wanted


@pytest.mark.parametrize("shape", ["last", "vector"])
def test_a_graph_with_the_last_row_alone(shape: str) -> None:
    with open_session(Counting(logits=shape).graph()) as session:
        assert np.array_equal(session.decode(PROMPT[:5], 0, want="last"), expected_rows(PROMPT)[4])
        before = state(session)
        for refused in (lambda: session.decode([1, 2], 5), lambda: session.verify([1, 2], 5)):
            with pytest.raises(OutputError, match="a row of 'logits' for each of 2 tokens is wanted, and there is 1"):
                refused()
        assert state(session) == before
        assert np.array_equal(session.verify(PROMPT[5:], 5), expected_rows(PROMPT)[5:])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"logits": "four"}, r"'logits' has the shape \[1, 1, 2, 32\]"),
        ({"logits": "empty"}, r"'logits' has the shape \[1, 0, 32\]"),
        ({"logits_element": TensorProto.INT32}, "'logits' is int32: float32, float16 or bfloat16"),
        ({"logits_element": TensorProto.DOUBLE}, "'logits' is float64"),
    ],
)
@pytest.mark.parametrize("want", ["rows", "last", "token"])
def test_logits_that_cannot_be_read(options: dict[str, Any], text: str, want: Any) -> None:
    with open_session(Counting(**options).graph()) as session:
        before = state(session)
        with pytest.raises(OutputError, match=text):
            session.decode([1, 2], 0, want=want)
        assert state(session) == before


def test_a_vocabulary_that_nothing_states_is_learned() -> None:
    model = Counting().graph()
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_param = "vocab"
    with open_session(model) as session:
        assert session.vocab_size is None
        session.decode([1], 0)
        assert session.vocab_size == VOCAB


# --- failures while it runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("want", ["rows", "last", "token", "verify"])
def test_a_step_that_is_not_finite_changes_nothing_and_can_be_retried(shape: dict[str, bool], want: Any) -> None:
    with open_session(Counting(**shape).graph()) as session:
        session.decode(PROMPT, 0)
        before = state(session)
        with pytest.raises(NonFiniteError, match=rf"32 values .* in the row of position 7 \(token {POISON}\)"):
            session.verify([1, POISON], 6) if want == "verify" else session.decode([1, POISON], 6, want=want)
        assert state(session) == before
        assert np.array_equal(session.decode([1, 2], 6), expected_rows([*PROMPT, 1, 2])[6:])


def test_only_wanted_rows_have_to_be_finite() -> None:
    with open_session(Counting().graph()) as session:
        assert session.decode([POISON, 2], 0, want="token") == (POISON + 2) % VOCAB
        with pytest.raises(NonFiniteError):
            session.decode([POISON, 2], 2)


# --- a prompt in chunks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [511, 512, 513, 1024, 1300])
@pytest.mark.parametrize("want", ["rows", "last", "token"])
def test_a_long_prompt_runs_in_chunks_that_do_not_show(count: int, want: Any) -> None:
    prompt = [index % 7 for index in range(count)]
    with open_session(Counting(recurrent=True).graph()) as session:
        found = session.decode(prompt, 0, want=want)
        assert session.stats().context.runs == -(-count // 512) == session.stats().steps
    expected = expected_rows(prompt)
    assert np.array_equal(found, {"rows": expected, "last": expected[-1], "token": expected[-1].argmax()}[want])


def test_when_a_later_chunk_fails_the_earlier_ones_are_taken_back() -> None:
    with open_session(Counting(recurrent=True).graph()) as session:
        session.decode([1, 2], 0)
        before = state(session)
        with pytest.raises(NonFiniteError):
            session.decode([1] * 600 + [POISON], 2, want="last")
        assert state(session) == before
        assert session.stats().context.runs == 3
        assert session.decode([3], 2, want="token") == 6


def test_a_draft_is_never_split() -> None:
    with open_session(Counting().graph()) as session:
        assert session.verify([1] * 600, 0).shape == (600, VOCAB)
        assert session.stats().context.runs == 1
