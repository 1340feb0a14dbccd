"""Backends that fail, Ctrl-C at every line, and threads: what is left is the session as it was."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenmill.session
import tokenmill_strategies
from counting import VOCAB, Counting, expected_rows, open_session
from test_decoding import PROMPT, state
from tokenmill.errors import ExecutionError, KernelError, OutputError, StepError
from tokenmill.session import Session


class Wrapped:
    """An object of which some attributes are replaced."""

    def __init__(self, inner: Any, **replaced: Any) -> None:
        self._inner = inner
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def with_run(change: Callable[[Any, dict[str, Any]], Any], take_error: Callable[[], int] = lambda: 0) -> Any:
    """Wraps an executable so that each run's step and outputs pass through `change`."""

    def wrap(executable: Any) -> Any:
        def open_context(tracer: Any) -> Any:
            context = executable.open(tracer)
            return Wrapped(
                context,
                run=lambda feeds, step: change(step, dict(context.run(feeds, step))),
                take_error=take_error,
            )

        return Wrapped(executable, open=open_context)

    return wrap


def raises(error: BaseException) -> Callable[[Any, dict[str, Any]], Any]:
    def change(step: Any, outputs: dict[str, Any]) -> Any:
        if 9 in step.tokens:
            raise error
        return outputs

    return change


def lacks(name: str) -> Callable[[Any, dict[str, Any]], Any]:
    return lambda step, outputs: {key: value for key, value in outputs.items() if key != name or 9 not in step.tokens}


def gives(name: str, of: Callable[[np.ndarray], Any]) -> Callable[[Any, dict[str, Any]], Any]:
    def change(step: Any, outputs: dict[str, Any]) -> Any:
        if 9 in step.tokens:
            array = of(outputs[name].numpy())
            outputs[name] = Wrapped(outputs[name], numpy=lambda: array)
        return outputs

    return change


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (raises(KeyboardInterrupt()), KeyboardInterrupt, None),
        (raises(ZeroDivisionError("by zero")), ExecutionError, "failed in a decode step of 1 tokens behind 2: ZeroDiv"),
        (raises(MemoryError()), ExecutionError, "free memory, or feed fewer tokens"),
        (raises(OutputError("as it is")), OutputError, "^as it is$"),
        (lacks("logits"), OutputError, "the backend gave no 'logits': its 3 outputs are"),
        (lacks("hidden"), OutputError, "the backend gave no 'hidden'"),
        (lacks("present.0.key"), OutputError, r"the backend gave no present 'present\.0\.key'"),
        (lacks("present.0.state"), OutputError, r"the backend gave no present 'present\.0\.state'"),
        (
            gives("present.0.key", lambda a: a[:, :, :2]),
            OutputError,
            r"\[1, 1, 2, 1\]: \[1, 1, 3, 1\] is needed with 3",
        ),
        (gives("present.0.key", lambda a: a[0]), OutputError, r"has the shape \[1, 3, 1\]"),
        (gives("present.0.key", lambda a: a.astype(np.float16)), OutputError, "is float16: its past takes float32"),
        (
            gives("present.0.state", lambda a: a[:, :1]),
            OutputError,
            r"has the shape \[1, 1, 1\]: \[1, 2, 1\] is needed",
        ),
        (gives("hidden", lambda a: a[None]), OutputError, r"'hidden' has the shape \[1, 1, 1, 4\]"),
        (gives("logits", lambda a: np.repeat(a, 3, axis=1)), OutputError, "has 3 rows"),
        (gives("logits", list), OutputError, "'logits' is list"),
    ],
)
def test_a_backend_that_fails_leaves_the_session_as_it_was(change: Any, error: Any, text: str) -> None:
    with open_session(Counting(recurrent=True).graph(), wrap=with_run(change)) as session:
        session.decode([1, 2], 0)
        before = state(session)
        with pytest.raises(error, match=text):
            session.decode([9], 2)
        assert state(session) == before
        assert session.decode([4], 2, want="token") == 7


def test_the_error_word_is_read_before_anything_else() -> None:
    words = iter([0, 0x12, 0])
    nothing: Any = lambda step, outputs: {} if 9 in step.tokens else outputs  # noqa: E731
    with open_session(Counting().graph(), wrap=with_run(nothing, lambda: next(words))) as session:
        session.decode([1, 2], 0)
        with pytest.raises(KernelError, match="error flags 0x12"):
            session.decode([9], 2)
        assert session.length == 2
        session.decode([4], 2)


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------

#: The code that an interrupt must be able to hit anywhere.
GUARDED = [str(Path(package.__path__[0])) for package in (tokenmill.session, tokenmill_strategies)]


@contextmanager
def interrupt_at(line: int) -> Iterator[None]:
    """Raise KeyboardInterrupt when the `line`-th line of the guarded code is reached, as a signal handler would.

    A trace also reaches the line of a `try`, and that of a `with` once more when its body ends. No signal strikes there:
    CPython looks for them behind calls and at jumps back, and there is neither.
    """
    seen = 0
    entered: set[tuple[Any, int]] = set()

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal seen
        if not frame.f_code.co_filename.startswith(tuple(GUARDED)):
            return None
        place = (frame, frame.f_lineno)
        if event == "line" and place in entered:
            entered.remove(place)
        elif (
            event == "line" and (text := linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()) != "try:"
        ):
            if text.startswith("with "):
                entered.add(place)
            seen += 1
            if seen == line:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


ACTIONS: dict[str, Callable[[Session], Any]] = {
    "decode": lambda session: session.decode([3, 4], 6, want="last"),
    "token": lambda session: session.decode([3], 6, want="token"),
    "chunks": lambda session: session.decode([1] * 600, 6, want="last"),
    "verify": lambda session: session.verify([3, 4], 6),
}


@pytest.mark.parametrize("action", list(ACTIONS))
def test_an_interrupt_at_any_line_of_a_step_takes_it_back(action: str) -> None:
    act = ACTIONS[action]
    with open_session(Counting(recurrent=True, mask=True).graph()) as session:
        session.decode(PROMPT, 0)
        act(session)
        after = state(session)
        session.rewind(6)  # it keeps no hidden row
        before, line, done, interrupted = state(session), 0, 0, True
        while interrupted:
            line += 1
            try:
                with interrupt_at(line):
                    act(session)
                interrupted = False
            except KeyboardInterrupt:
                assert not session._turn.locked()
                if state(session) == after:
                    done += 1
                    session.rewind(6)
                assert state(session) == before, f"line {line}"
        # When the last thing to do is to return, the step is done.
        assert done <= 2
        assert line > 100
        session.rewind(6)
        assert np.array_equal(session.decode([3, 4], 6), expected_rows([*PROMPT, 3, 4])[6:])


MOVES: dict[str, tuple[Callable[[Session, Any], Any], tuple[int, ...]]] = {
    "rewind": (lambda session, mark: session.rewind(7), (8, 6, 7)),
    "reset": (lambda session, mark: session.reset(), (0,)),
    "restore": (lambda session, mark: session.restore(mark), (8, 6)),
}


@pytest.mark.parametrize("move", list(MOVES))
def test_an_interrupt_at_any_line_of_a_move_leaves_one_of_its_ends(move: str) -> None:
    """A rewind of a recurrent state has an end between: the snapshot from which tokens are fed again."""
    act, ends = MOVES[move]
    tokens = [*PROMPT, 3, 4]
    line, interrupted = 0, True
    while interrupted:
        line += 1
        with open_session(Counting(recurrent=True, mask=True).graph()) as session:
            session.decode(PROMPT, 0)
            mark = session.mark()
            for token in (3, 4):
                session.decode([token], session.length)
            try:
                with interrupt_at(line):
                    act(session, mark)
                interrupted = False
            except KeyboardInterrupt:
                session.read_past("past.0.key")  # the first call carries through what was cut off
                assert session.length in (*ends, 8), f"line {line}"
            length = session.length
            assert session.tokens == tuple(tokens[:length]), f"line {line}"
            assert session.read_past("past.0.key").ravel().tolist() == tokens[:length], f"line {line}"
            assert session.read_past("past.0.state").ravel().tolist() == [sum(tokens[:length])] * 2, f"line {line}"
            assert session.decode([5], length, want="token") == (sum(tokens[:length]) + 5) % VOCAB, f"line {line}"
    assert line > 20


# --- threads ---------------------------------------------------------------------------------------------------------


def in_threads(*jobs: Callable[[], Any]) -> list[Any]:
    results: list[Any] = [None] * len(jobs)

    def run(index: int) -> None:
        try:
            results[index] = jobs[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_sessions_of_one_executable_run_side_by_side() -> None:
    shared: list[Any] = []
    model = Counting(recurrent=True).graph()

    def share(executable: Any) -> Any:
        shared.append(executable)
        return shared[0]

    def job(session: Session, tokens: list[int]) -> np.ndarray:
        rows = [session.decode([token], index) for index, token in enumerate(tokens)]
        return np.concatenate(rows)

    tokens = [[(7 * index + offset) % 30 for index in range(60)] for offset in range(2)]
    sessions = [open_session(model, wrap=share) for _ in tokens]
    found = in_threads(*(lambda s=s, t=t: job(s, t) for s, t in zip(sessions, tokens, strict=True)))
    for rows, fed in zip(found, tokens, strict=True):
        assert np.array_equal(rows, expected_rows(fed))


def test_one_session_serves_one_thread_at_a_time() -> None:
    """Whoever comes second finds another length, or room: never a cache of mixed steps."""
    with open_session(Counting(recurrent=True).graph()) as session:

        def job() -> int:
            done = 0
            while done < 40:
                try:
                    session.decode([1], session.length)
                    done += 1
                except StepError:
                    continue
            return done

        assert in_threads(job, job) == [40, 40]
        assert session.tokens == (1,) * 80
        assert session.read_past("past.0.state").ravel().tolist() == [80, 80]
