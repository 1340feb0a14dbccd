"""The whole path from a prompt to text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil
import pytest
import tokenmill
from tokenmill.api import Model

ZOO = Path(__file__).parents[2] / "data" / "zoo"
STEPS = 7


@pytest.mark.parametrize("name", ["llama-fp32", "lfm2-fp32", "optimum-gpt2"])
def test_greedy_tokens_are_the_oracle_s(name: str) -> None:
    """`oracle.npz` holds a prompt and the tokens that onnxruntime's logits choose behind it."""
    tokens = np.load(ZOO / name / "oracle.npz")["tokens"].tolist()
    prompt, expected = tokens[: -STEPS - 1], tokens[-STEPS - 1 :]
    with tokenmill.load(ZOO / name, backend="reference") as model:
        fast = model.generate(prompt, max_new_tokens=len(expected), ignore_eos=True)
        # With log-probabilities the choice is made from logits, and not by the backend.
        slow = model.generate(prompt, max_new_tokens=len(expected), ignore_eos=True, logprobs=1)
    assert list(fast.tokens) == list(slow.tokens) == expected
    assert [step[0].token for step in slow.alternatives] == expected
    assert fast.finish_reason == "length"


def test_pieces_and_their_sum(model: Model) -> None:
    pieces = list(model.stream("The mill", max_new_tokens=20, ignore_eos=True))
    whole = model.generate("The mill", max_new_tokens=20, ignore_eos=True)
    assert "".join(piece.text for piece in pieces) == whole.text == str(whole)
    assert tuple(piece.token for piece in pieces) == whole.tokens
    assert [piece.finish_reason for piece in pieces] == [None] * 19 + ["length"]
    assert [piece.statistics is None for piece in pieces] == [True] * 19 + [False]
    assert whole.text == model.tokenizer.decode(whole.tokens)


def test_statistics(model: Model) -> None:
    found = model.generate([1, 2, 3, 4], max_new_tokens=5, ignore_eos=True).statistics
    assert (found.prompt_tokens, found.reused_tokens, found.new_tokens) == (4, 0, 5)
    assert found.first_token_seconds is not None and 0 < found.prompt_seconds <= found.first_token_seconds
    assert found.prompt_rate == 4 / found.prompt_seconds and found.decode_rate == 4 / found.decode_seconds
    assert found.peak_memory is not None and 10 * 2**20 < found.peak_memory < 2**40


def test_the_last_token_stays_pending(model: Model) -> None:
    """After N new tokens the cache holds prompt + N - 1."""
    with model.conversation(max_new_tokens=5, ignore_eos=True) as chat:
        reply = chat.say("hi")
        assert chat._session is not None
        assert chat._session.length == reply.statistics.prompt_tokens + 5 - 1
        assert list(chat._session.tokens[-4:]) == list(reply.tokens[:-1])


def test_one_token_of_prompt(textless: Model) -> None:
    one = textless.generate([5], max_new_tokens=3)
    with textless.session() as session:
        assert one.tokens[0] == int(session.decode([5], 0, want="last").argmax())
    assert one.text == ""


def test_memory_stays_where_it_is(textless: Model) -> None:
    """A cache of this model takes 256 KiB at full context: 200 that were kept would be 50 MiB."""
    process = psutil.Process()
    for _ in range(20):
        textless.generate([1, 2, 3], max_new_tokens=4, temperature=1.0)
    before = process.memory_info().rss
    for _ in range(200):
        textless.generate([1, 2, 3], max_new_tokens=4, temperature=1.0)
    assert process.memory_info().rss < before * 1.05
