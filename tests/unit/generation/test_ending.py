"""What ends a generation, and how the session stands afterwards."""

from __future__ import annotations

import signal
import sys
import threading
import time
from itertools import islice

import pytest
from tokenmill import cancelled_by_interrupt
from tokenmill.api import Model

PROMPT = "The mill"


@pytest.fixture
def free(model: Model) -> tuple[int, ...]:
    """What the model writes when only the length ends it."""
    return model.generate(PROMPT, max_new_tokens=24, ignore_eos=True).tokens


def test_a_stop_token(model: Model, free: tuple[int, ...]) -> None:
    stop = free[5]
    found = model.generate(PROMPT, max_new_tokens=24, ignore_eos=True, stop_token_ids=[stop])
    first = free.index(stop)
    assert (found.finish_reason, found.tokens) == ("stop", free[: first + 1])
    assert found.text == model.tokenizer.decode(free[:first])


def test_end_tokens_of_the_model(model: Model, free: tuple[int, ...]) -> None:
    # A bias makes the end token (2) certain at once.
    found = model.generate(PROMPT, logit_bias={2: 100.0})
    assert (found.finish_reason, found.tokens, found.text) == ("eos", (2,), "")
    ignored = model.generate(PROMPT, logit_bias={2: 100.0}, ignore_eos=True, max_new_tokens=3)
    assert (ignored.finish_reason, ignored.tokens) == ("length", (2, 2, 2))


def test_no_end_before_the_minimum(model: Model) -> None:
    found = model.generate(PROMPT, logit_bias={2: 100.0}, min_new_tokens=4, max_new_tokens=24)
    assert found.finish_reason == "eos" and len(found.tokens) == 5 and 2 not in found.tokens[:4]


def test_a_stop_string_over_token_borders(model: Model, free: tuple[int, ...]) -> None:
    pieces = list(model.stream(PROMPT, max_new_tokens=24, ignore_eos=True))
    text = "".join(piece.text for piece in pieces)
    borders = [sum(len(piece.text) for piece in pieces[: index + 1]) for index in range(len(pieces))]
    border = next(border for border in borders if 2 <= border <= len(text) - 3)
    stop = text[border - 1 : border + 2]
    found = model.generate(PROMPT, max_new_tokens=24, ignore_eos=True, stop=stop)
    assert found.finish_reason == "stop"
    assert found.text == text[: text.index(stop)]
    assert found.tokens == free[: len(found.tokens)]


def test_the_context_is_full(model: Model) -> None:
    prompt = [5] * 250  # of a context of 256: the last of 7 new tokens needs no room
    found = model.generate(prompt, ignore_eos=True)
    assert (found.finish_reason, len(found.tokens)) == ("context", 7)
    assert len(model.generate([5] * 256, ignore_eos=True).tokens) == 1


def test_cancelled_from_another_thread(model: Model) -> None:
    cancel = threading.Event()
    pieces = model.stream(PROMPT, ignore_eos=True, cancel=cancel)
    seen = list(islice(pieces, 3))
    threading.Thread(target=cancel.set).start()
    while not cancel.is_set():
        time.sleep(0.001)
    rest = list(pieces)
    assert [piece.finish_reason for piece in rest] == ["cancelled"]
    assert rest[0].token is None and rest[0].statistics is not None and rest[0].statistics.new_tokens == len(seen)


def test_cancelled_before_it_began(model: Model) -> None:
    cancel = threading.Event()
    cancel.set()
    found = model.generate(PROMPT, cancel=cancel)
    assert (found.finish_reason, found.text, found.tokens) == ("cancelled", "", ())
    assert found.statistics.first_token_seconds is None and found.statistics.decode_rate == 0


def test_a_deadline(model: Model) -> None:
    pieces = model.stream(PROMPT, ignore_eos=True, timeout_s=0.05)
    first = next(pieces)
    time.sleep(0.06)
    rest = list(pieces)
    assert first.finish_reason is None and [piece.finish_reason for piece in rest] == ["deadline"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_keeps_what_was_produced(model: Model) -> None:
    before = signal.getsignal(signal.SIGINT)
    with cancelled_by_interrupt() as cancel:
        pieces = model.stream(PROMPT, ignore_eos=True, cancel=cancel)
        next(pieces)
        signal.raise_signal(signal.SIGINT)
        rest = list(pieces)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert rest[-1].finish_reason == "cancelled"
    assert signal.getsignal(signal.SIGINT) is before


def test_closing_early_leaves_the_model_usable(model: Model, free: tuple[int, ...]) -> None:
    pieces = model.stream(PROMPT, ignore_eos=True)
    next(pieces)
    pieces.close()
    assert model.generate(PROMPT, max_new_tokens=24, ignore_eos=True).tokens == free


def test_threads_do_not_mix(model: Model) -> None:
    prompts = [[3, 4, 5], [6, 7], [8, 9, 10, 11], [12]]
    alone = [model.generate(prompt, max_new_tokens=12, ignore_eos=True).tokens for prompt in prompts]
    together: list[tuple[int, ...]] = [()] * len(prompts)

    def work(index: int) -> None:
        together[index] = model.generate(prompts[index], max_new_tokens=12, ignore_eos=True).tokens

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone
