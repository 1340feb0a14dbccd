"""Pieces of text: together what the tokenizer makes of all tokens at once, and none of them broken."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache

import pytest
import tiny_tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenmill.generation.detokenizing import detokenizer
from tokenmill.generation.tokenizer import Tokenizer, read_tokenizer
from tokenmill.home import home

KINDS: dict[str, Callable[[], object]] = {
    "byte_level": tiny_tokenizers.byte_level,
    "byte_fallback": tiny_tokenizers.byte_fallback,
    "metaspace": tiny_tokenizers.metaspace,
    "spaced": tiny_tokenizers.spaced,
}


@cache
def made(kind: str) -> Tokenizer:
    return Tokenizer(KINDS[kind]())  # type: ignore[arg-type]


@cache
def real(name: str) -> Tokenizer:
    directory = home() / "models" / name
    if not (directory / "tokenizer.json").exists():
        message = f"{directory} is missing: run tests/models/build.sh {name}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return read_tokenizer(directory)


def pieces(tokenizer: Tokenizer, ids: list[int], context: tuple[int, ...] = ()) -> list[str]:
    stream = detokenizer(tokenizer, context)
    return [*(stream.add(token) for token in ids), stream.flush()]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_any_tokens_give_what_the_tokenizer_gives(kind: str, data: st.DataObject) -> None:
    tokenizer = made(kind)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=20))
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@given(text=st.text(max_size=30))
@settings(max_examples=300, deadline=None)
def test_text_comes_back_character_by_character(kind: str, text: str) -> None:
    tokenizer = made(kind)
    ids = tokenizer.encode(text)
    found = pieces(tokenizer, ids)
    assert "".join(found) == tokenizer.decode(ids)
    if "�" not in text and "<" not in text:
        assert not any("�" in piece for piece in found)


@pytest.mark.models
@pytest.mark.parametrize("name", ["smollm2-135m-int4", "qwen2.5-0.5b-int4"])
@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_real_tokenizers(name: str, data: st.DataObject) -> None:
    tokenizer = real(name)
    text = data.draw(st.text(max_size=30))
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 100), max_size=20)) + tokenizer.encode(text)
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


def test_a_character_comes_when_it_is_complete() -> None:
    tokenizer = made("byte_fallback")
    llama = [tokenizer.number(f"<0x{byte:02X}>") for byte in "🦙".encode()]
    a = tokenizer.number("a")
    assert pieces(tokenizer, [a, *llama, a]) == ["a", "", "", "", "", "🦙a", ""]
    assert pieces(tokenizer, [a, *llama[:2]]) == ["a", "", "", tokenizer.decode(llama[:2])]


def test_a_byte_level_character_comes_with_its_last_byte() -> None:
    tokenizer = made("byte_level")
    alphabet = {byte: tokenizer.backend.pre_tokenizer.pre_tokenize_str(chr(byte))[0][0] for byte in range(0x21, 0x7F)}
    assert alphabet[0x41] == "A"
    ids = tokenizer.encode("x€y")
    found = pieces(tokenizer, ids)
    assert "".join(found) == "x€y" and all(piece in ("", "x", "€", "y") for piece in found)


def test_special_tokens_are_no_text_and_added_ones_are() -> None:
    tokenizer = made("byte_level")
    ids = tokenizer.encode("<s>a<think>\t \né🦙</s>")
    assert "".join(pieces(tokenizer, ids)) == "a<think>\t \né🦙" == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["byte_fallback", "metaspace"])
def test_a_continuation_keeps_its_leading_space(kind: str) -> None:
    tokenizer = made(kind)
    prompt, new = tokenizer.encode("a b"), [tokenizer.number("▁a"), tokenizer.number(".")]
    assert "".join(pieces(tokenizer, new, tuple(prompt))) == " a."
    assert "".join(pieces(tokenizer, new)) == "a."


@given(prompt=st.text(max_size=12), cut=st.integers(0, 8), rest=st.text(max_size=12))
@settings(max_examples=200, deadline=None)
def test_a_continuation_may_begin_within_a_character(prompt: str, cut: int, rest: str) -> None:
    tokenizer = made("byte_level")
    ids = tokenizer.encode(prompt + "🦙" + rest)
    head = ids[: max(0, len(ids) - cut)]
    shown = detokenizer(tokenizer)
    known = "".join(shown.add(token) for token in head)  # without an incomplete character
    assert known + "".join(pieces(tokenizer, ids[len(head) :], tuple(head))) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_cost_per_token_does_not_grow(kind: str) -> None:
    tokenizer = made(kind)
    ids = tokenizer.encode("a b c é 🦙 " * 40)

    def seconds(repeats: int) -> float:
        begun = time.perf_counter()
        pieces(tokenizer, ids * repeats)
        return time.perf_counter() - begun

    seconds(1)
    # Eight times the tokens: quadratic cost would be 64 times; a busy machine may double a measurement.
    assert min(seconds(16) for _ in range(3)) < 8 * 3 * min(seconds(2) for _ in range(3))
