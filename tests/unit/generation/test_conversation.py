"""A conversation reads nothing twice, and survives replies that are cut short."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import tokenmill
from tokenmill.api import Model

SAID = {"max_new_tokens": 6, "ignore_eos": True}


def common(left: tuple[int, ...], right: list[int]) -> int:
    return next(
        (index for index, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )


@pytest.mark.parametrize("name", ["llama-fp32", "lfm2-fp32"])
def test_the_common_prefix_is_kept(name: str, directory: Path, tmp_path: Path) -> None:
    """On a recurrent cache, too. The replies are those of a model that reads everything again."""
    from shutil import copy, copytree

    path = copytree(Path(__file__).parents[2] / "data" / "zoo" / name, tmp_path / name)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        copy(directory / file, path)
    with tokenmill.load(path, backend="reference") as model, model.conversation(**SAID) as chat:
        for turn, text in enumerate(["Hello there", "Why?", "Go on."]):
            assert chat._session is not None
            held = chat._session.tokens
            asked = [*chat.messages, {"role": "user", "content": text}]
            ids = model._generator.encode_conversation(asked)
            reply = chat.say(text)
            assert reply.statistics.reused_tokens == common(held, ids)
            assert (reply.statistics.reused_tokens > 0) == (turn > 0)
            assert reply.statistics.prompt_tokens == len(ids)
            assert reply.tokens == model.chat(asked, **SAID).tokens


def test_the_same_again_feeds_one_token(model: Model) -> None:
    with model.conversation(**SAID) as chat:
        first = chat.say("hi")
        chat.reset()
        assert chat.messages == ()
        again = chat.say("hi")
        assert again.statistics.reused_tokens == again.statistics.prompt_tokens - 1
        assert again.tokens == first.tokens


def test_messages_to_begin_with(model: Model) -> None:
    beginning = [{"role": "system", "content": "Be brief."}]
    with model.conversation(beginning, **SAID) as chat:
        reply = chat.say("hi")
        assert [message["role"] for message in chat.messages] == ["system", "user", "assistant"]
        assert chat.messages[-1]["content"] == reply.text
        chat.reset()
        assert list(chat.messages) == beginning


def test_a_reply_that_is_cut_short_stays(model: Model) -> None:
    with model.conversation(ignore_eos=True) as chat:
        pieces = chat.stream("hi")
        said = [next(pieces).text for _ in range(4)]
        pieces.close()
        assert chat.messages[-1] == {"role": "assistant", "content": "".join(said)}
        cancel = threading.Event()
        cancel.set()
        before = chat.messages
        assert chat.say("more", cancel=cancel).finish_reason == "cancelled"
        assert [message["role"] for message in chat.messages[len(before) :]] in ([], ["user", "assistant"])
        assert chat.say("more", max_new_tokens=2).finish_reason == "length"


def test_nothing_said_leaves_nothing(model: Model) -> None:
    with model.conversation() as chat:
        chat.stream("hi").close()
        assert chat.messages == ()


def test_a_chat_that_was_closed_opens_again(model: Model) -> None:
    chat = model.conversation(**SAID)
    first = chat.say("hi")
    chat.close()
    chat.close()
    chat.reset()
    assert chat.say("hi").tokens == first.tokens
    chat.close()


def test_a_text_is_a_message_of_the_user(model: Model) -> None:
    assert model.chat("hi", **SAID).tokens == model.chat([{"role": "user", "content": "hi"}], **SAID).tokens
    assert model.chat("hi", **SAID).tokens == model.generate("<user>hi\n<assistant>", **SAID).tokens
