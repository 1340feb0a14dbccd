"""Steps, prompts and conversations that cannot be, and generations that are broken off."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tokenmill
from refusals import refused
from tokenmill.api import Model
from tokenmill.errors import (
    CapacityError,
    ConfigError,
    GenerationError,
    PortError,
    RewindError,
    RoutedInputError,
    SessionClosedError,
    StepError,
    TemplateError,
    TokenizerError,
    TokenmillError,
)
from tokenmill.session import Session

HELD = [3, 4, 5]


@pytest.fixture
def session(sound: Model) -> Iterator[Session]:
    """A session that holds three tokens."""
    with sound.session() as opened:
        opened.decode(HELD, 0)
        yield opened


STEPS: dict[str, tuple[Callable[[Session], object], type[TokenmillError], str]] = {
    "no tokens": (lambda session: session.decode([], 3), StepError, "at least one token"),
    "an id beyond the vocabulary": (lambda s: s.decode([512], 3), StepError, "token 512 at index 0.*0 to 511"),
    "a negative id": (lambda s: s.decode([1, -1], 3), StepError, "token -1 at index 1"),
    "ids that are no integers": (lambda s: s.decode([1.5], 3), StepError, "flat list of integers"),
    "two sequences": (lambda s: s.decode([[1], [2]], 3), StepError, "flat list of integers"),
    "past_len behind": (lambda s: s.decode([1], 2), StepError, "past_len is 2, the session holds 3"),
    "past_len ahead": (lambda s: s.decode([1], 4), StepError, "past_len is 4, the session holds 3"),
    "past_len negative": (lambda s: s.decode([1], -1), StepError, "past_len is -1"),
    "more than fit": (
        lambda s: s.decode([1] * 254, 3),
        CapacityError,
        r"make 257, the cache holds 256.*cache\.max_len",
    ),
    "a draft that does not fit": (lambda s: s.verify([1] * 254, 3), CapacityError, "the cache holds 256"),
    "rewind forward": (lambda s: s.rewind(4), RewindError, "from 3 tokens to 4"),
    "rewind below zero": (lambda s: s.rewind(-1), RewindError, "to -1"),
    "a want that does not exist": (lambda s: s.decode([1], 3, want="best"), StepError, "token, last, rows"),  # type: ignore[arg-type]
    "a routed input that does not exist": (
        lambda s: s.decode([1], 3, routed={"pixels": np.zeros(1)}),
        RoutedInputError,
        "'pixels'",
    ),
    "a past that does not exist": (lambda s: s.read_past("past.9.key"), PortError, r"past\.9\.key"),
    "a loan of what does not exist": (lambda s: s.lend(["past.9.key"]), PortError, r"past\.9\.key"),
}


@pytest.mark.parametrize("case", STEPS)
def test_a_step(case: str, session: Session) -> None:
    act, error, text = STEPS[case]
    with refused(error, text):
        act(session)
    assert session.tokens == tuple(HELD)
    session.decode([6], 3)


def test_a_mark_of_another_session(sound: Model, session: Session) -> None:
    with sound.session() as other, refused(RewindError, "another session"):
        session.restore(other.mark())


@pytest.mark.parametrize("act", ["decode", "rewind", "reset", "mark"])
def test_a_closed_session(act: str, sound: Model) -> None:
    session = sound.session()
    session.close()
    session.close()
    with refused(SessionClosedError, "closed.*open another"):
        {
            "decode": lambda: session.decode([1], 0),
            "rewind": lambda: session.rewind(0),
            "reset": session.reset,
            "mark": session.mark,
        }[act]()


def test_a_closed_model(directory: Path) -> None:
    model = tokenmill.load(directory, backend="reference")
    model.close()
    with refused(SessionClosedError, "closed.*load it again"):
        model.generate("hi")


# --- routed inputs -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scaled(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """The model with its logits multiplied by an input that nothing generates."""
    proto = onnx.load(directory / "model.onnx")
    for node in proto.graph.node:
        for index, name in enumerate(node.output):
            if name == "logits":
                node.output[index] = "unscaled"
    proto.graph.node.append(onnx.helper.make_node("Mul", ["unscaled", "scale"], ["logits"]))
    proto.graph.input.append(onnx.helper.make_tensor_value_info("scale", onnx.TensorProto.FLOAT, [1]))
    path = tmp_path_factory.mktemp("scaled") / "model.onnx"
    onnx.save(proto, path)
    with tokenmill.load(path, backend="reference") as model:
        yield model


ONE = np.ones(1, np.float32)


@pytest.mark.parametrize(
    ("routed", "text"),
    [
        ((), "'scale' is missing"),
        ([("scale", ONE), ("scale", ONE)], "'scale' was given twice"),
        ([("scale", ONE), ("scales", ONE)], "'scales'"),
        ([("scale", ONE), ("input_ids", ONE)], "'input_ids'"),
        ({"scale": 1.0}, "an array is needed"),
        ({"scale": np.ones(1)}, "convert it to float32"),
        ({"scale": np.ones(2, np.float32)}, r"the shape \[2\]"),
        ({"scale": np.float32(1)}, "an array is needed"),
    ],
)
def test_routed_values(routed: Any, text: str, scaled: Model) -> None:
    with scaled.session() as session:
        with refused(RoutedInputError, text):
            session.decode([1], 0, routed=routed)
        assert session.length == 0
        session.decode([1], 0, routed={"scale": ONE})


# --- prompts and settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "error", "text"),
    [
        ("", GenerationError, "the prompt is empty"),
        ([], GenerationError, "the prompt is empty"),
        ([512], StepError, "0 to 511"),
        ([-1], StepError, "0 to 511"),
        ([2**80], StepError, "tokens are|vocabulary"),
        ([1] * 257, CapacityError, "257 tokens, the cache holds 256"),
        ("x " * 2000, CapacityError, "the cache holds 256"),
        ("\ud800", TokenizerError, "cannot be encoded"),
        (5, GenerationError, "int"),
        (None, GenerationError, "NoneType"),
        (b"bytes", GenerationError, "bytes"),
    ],
)
def test_a_prompt(prompt: Any, error: type[TokenmillError], text: str, sound: Model) -> None:
    with refused(error, text):
        sound.generate(prompt)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"temprature": 1}, ConfigError),
        ({"temperature": -0.1}, ConfigError),
        ({"temperature": math.nan}, ConfigError),
        ({"temperature": "hot"}, ConfigError),
        ({"temperature": True}, ConfigError),
        ({"top_k": -1}, ConfigError),
        ({"top_k": 1.5}, ConfigError),
        ({"top_p": 0}, ConfigError),
        ({"top_p": 1.5}, ConfigError),
        ({"min_p": 2}, ConfigError),
        ({"repetition_penalty": 0}, ConfigError),
        ({"frequency_penalty": 3}, ConfigError),
        ({"max_new_tokens": 0}, ConfigError),
        ({"min_new_tokens": -1}, ConfigError),
        ({"seed": -1}, ConfigError),
        ({"logprobs": -1}, ConfigError),
        ({"timeout_s": 0}, ConfigError),
        ({"stop": [1]}, ConfigError),
        ({"stop": [""]}, GenerationError),
        ({"logit_bias": {512: 1.0}}, GenerationError),
        ({"logit_bias": {1: math.nan}}, GenerationError),
        ({"logit_bias": {"a": 1.0}}, ConfigError),
        ({"logit_bias": dict.fromkeys(range(512), -math.inf)}, GenerationError),
    ],
)
def test_settings(settings: dict[str, Any], error: type[TokenmillError], sound: Model) -> None:
    with refused(error, rf"generation\.{next(iter(settings))}"):
        sound.generate("hi", **settings)


# --- chat templates ----------------------------------------------------------------------------------------------------

ESCAPES = {
    "a class": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "by filter": "{{ messages|attr('__class__') }}",
    "by index": "{{ messages['__class__'] }}",
    "by format": "{{ '{0.__class__}'.format(messages) }}",
    "a method's function": "{{ messages.index.__self__ }}",
}
TEMPLATES = {
    **{case: (source, "fails: it reaches for '__") for case, source in ESCAPES.items()},
    "malformed": ("{% if %}", "malformed in line 1"),
    "unfinished": ("{% for m in messages %}", "malformed"),
    "refuses": ("{{ raise_exception('no system messages') }}", "refuses the conversation: no system messages"),
    "divides by zero": ("{{ 1 // 0 }}", "fails"),
    "too long": ("{{ 'x' * 10**12 }}", "fails"),
    "endless": ("{% for i in range(10**9) %}{{ i }}{% endfor %}", "fails"),
}


@pytest.mark.parametrize("case", TEMPLATES)
def test_a_chat_template(case: str, directory: Path, tmp_path: Path) -> None:
    source, text = TEMPLATES[case]
    (tmp_path / "chat.jinja").write_text(source)
    chosen = {"chat_template": str(tmp_path / "chat.jinja")}
    with tokenmill.load(directory, backend="reference", model=chosen) as model:
        with refused(TemplateError, text):
            model.chat("hi")
        assert model.generate("hi", max_new_tokens=1).tokens


@pytest.mark.parametrize("messages", [[], ["hi"], [{"content": "hi"}], [{"role": 1, "content": "hi"}]])
def test_a_conversation(messages: Any, sound: Model) -> None:
    with refused(GenerationError, "message|conversation"):
        sound.chat(messages)


# --- broken off --------------------------------------------------------------------------------------------------------


def test_a_generation_that_is_closed(sound: Model) -> None:
    pieces = sound.stream("hi", ignore_eos=True)
    next(pieces)
    pieces.close()
    assert list(pieces) == []


@pytest.mark.skipif(sys.platform == "win32", reason="timers of POSIX")
@pytest.mark.parametrize("delay", [0.001, 0.005, 0.02])
def test_a_generation_that_is_interrupted(delay: float, sound: Model) -> None:
    """Ctrl-C wherever it strikes: within a step, a choice, or between them."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, delay)
            while True:
                sound.generate("hi", ignore_eos=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
