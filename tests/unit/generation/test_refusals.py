"""What a generation refuses, before anything has changed; and that it works afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenmill
from tokenmill.api import Model
from tokenmill.errors import (
    CapacityError,
    ConfigError,
    GenerationError,
    SessionClosedError,
    StepError,
    TemplateError,
    TokenizerError,
)


@pytest.mark.parametrize("prompt", ["", [], ()])
def test_an_empty_prompt(model: Model, prompt: Any) -> None:
    with pytest.raises(GenerationError, match="the prompt is empty"):
        model.generate(prompt)


@pytest.mark.parametrize("prompt", [[512], [-1], [1, 2, 10**9]])
def test_an_id_out_of_the_vocabulary(model: Model, prompt: list[int]) -> None:
    with pytest.raises(StepError, match="ids go from 0 to 511"):
        model.generate(prompt)


@pytest.mark.parametrize("prompt", [[[1, 2]], [1.5], ["a"]])
def test_a_prompt_that_is_no_list_of_ids(model: Model, prompt: Any) -> None:
    with pytest.raises(StepError, match="flat list of integers"):
        model.generate(prompt)


def test_a_prompt_longer_than_the_context(model: Model) -> None:
    with pytest.raises(CapacityError, match=r"the prompt has 257 tokens, the cache holds 256; .*cache\.max_len"):
        model.generate([5] * 257)


@pytest.mark.parametrize("strategy", ["copied", "auto"])
def test_a_configured_capacity(directory: Path, strategy: str) -> None:
    with tokenmill.load(directory, backend="reference", cache={"max_len": 8, "strategy": strategy}) as model:
        with pytest.raises(CapacityError, match="the cache holds 8"):
            model.generate([5] * 9)
        found = model.generate([5] * 6, ignore_eos=True)
    assert (found.finish_reason, len(found.tokens)) == ("context", 3)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"temprature": 1}, "did you mean generation.temperature"),
        ({"temperature": "hot"}, "generation.temperature = 'hot'"),
        ({"temperature": -1}, "generation.temperature = -1"),
        ({"max_new_tokens": 0}, "generation.max_new_tokens = 0"),
        ({"top_p": 0.0}, "generation.top_p"),
        ({"stop": 5}, "generation.stop"),
    ],
)
def test_settings_that_cannot_be(model: Model, given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        model.stream("a", **given)  # at once, not at the first token


@pytest.mark.parametrize("given", [{"logit_bias": {512: 1.0}}, {"stop": [""]}])
def test_settings_that_do_not_fit(model: Model, given: dict[str, Any]) -> None:
    with pytest.raises(GenerationError):
        model.generate("a", **given)


def test_a_refusal_leaves_a_conversation_as_it_was(model: Model) -> None:
    with model.conversation(max_new_tokens=3) as chat:
        chat.say("hi")
        assert chat._session is not None
        before = (chat.messages, chat._session.tokens)
        for refused in (lambda: chat.say("x" * 2000), lambda: chat.say("hi", logit_bias={512: 1.0})):
            with pytest.raises((CapacityError, GenerationError)):
                refused()
            assert (chat.messages, chat._session.tokens) == before


def test_text_without_a_tokenizer(textless: Model) -> None:
    with pytest.raises(TokenizerError, match="give token ids instead of text"):
        textless.generate("hi")
    with pytest.raises(TokenizerError, match=r"there is no tokenizer\.json"):
        _ = textless.tokenizer
    with pytest.raises(TokenizerError, match="stop_token_ids"):
        textless.generate([1], stop="x")


def test_a_chat_without_a_template(textless: Model) -> None:
    assert textless.chat_template is None
    with pytest.raises(TemplateError, match=r"set model\.chat_template"):
        textless.chat("hi")


def test_an_empty_conversation(model: Model) -> None:
    with pytest.raises(GenerationError, match="the conversation is empty"):
        model.chat([])


def test_broken_text_files(directory: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with (
        tokenmill.load(directory, backend="reference", model={"tokenizer": str(broken)}) as model,
        pytest.raises(TokenizerError, match="cannot be read"),
    ):
        model.generate("hi")
    template = tmp_path / "broken.jinja"
    template.write_text("{% if %}")
    with tokenmill.load(directory, backend="reference", model={"chat_template": str(template)}) as model:
        with pytest.raises(TemplateError, match="malformed"):
            model.chat("hi")
        assert model.generate("hi", max_new_tokens=1).tokens


def test_a_closed_model(directory: Path) -> None:
    model = tokenmill.load(directory, backend="reference")
    running = model.stream("hi", ignore_eos=True)
    next(running)
    model.close()
    model.close()
    assert next(running).token is not None  # what runs may end
    running.close()
    for refused in (lambda: model.generate("hi"), model.session, model.conversation):
        with pytest.raises(SessionClosedError, match="load it again"):
            refused()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"backend": "no-such"}, "no-such"),
        ({"generation": "hot"}, "expected a table"),
        ({"cash": {"max_len": 5}}, "there is no key cash"),
    ],
)
def test_configuration_that_cannot_be(directory: Path, given: dict[str, Any], text: str) -> None:
    with pytest.raises(tokenmill.TokenmillError, match=text):
        tokenmill.load(directory, **given)


def test_a_configuration_file_goes_below_keywords(directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        f'model.ref = "{directory.as_posix()}"\nbackend.name = "reference"\n[generation]\nmax_new_tokens = 3\n'
    )
    with tokenmill.load(config_file=file, generation={"ignore_eos": True}) as model:
        assert len(model.generate("hi").tokens) == 3
        assert len(model.generate("hi", max_new_tokens=2).tokens) == 2


def test_names_of_the_package() -> None:
    for name in tokenmill.__all__:
        assert getattr(tokenmill, name) is not None
    assert set(tokenmill.__all__) <= set(dir(tokenmill))
    assert tokenmill.__version__
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = tokenmill.lod
