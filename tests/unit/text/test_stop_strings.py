"""Stop strings: wherever tokens end, the text ends in the same place."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenmill.contracts.processing import GenerationSettings
from tokenmill.errors import GenerationError, TokenizerError
from tokenmill.generation.stop_strings import StopStrings
from tokenmill.generation.text_stream import TextStream

TEXTS = st.text(alphabet="ab.", max_size=24)
STOPS = st.lists(st.text(alphabet="ab.", min_size=1, max_size=4), max_size=3)


def first_stop(text: str, stops: list[str]) -> str | None:
    """Text before the stop string that is complete first, the longest of those that end there; by definition."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))]
    return None


@given(text=TEXTS, stops=STOPS, cuts=st.lists(st.integers(0, 24), max_size=6))
def test_borders_change_nothing(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopStrings(stops)
    borders = [0, *sorted(cuts), len(text)]
    out = ""
    for start, end in pairwise(borders):
        added, stopped = matcher.feed(text[start:end])
        out += added
        if stopped:
            assert out == first_stop(text, stops)
            return
    assert first_stop(text, stops) is None
    assert out + matcher.flush() == text


@given(text=TEXTS, stops=STOPS)
def test_no_more_is_held_back_than_may_be_needed(text: str, stops: list[str]) -> None:
    matcher = StopStrings(stops)
    seen = out = ""
    for character in text:
        seen += character
        added, stopped = matcher.feed(character)
        out += added
        if stopped:
            return
        held = seen[len(out) :]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(GenerationError, match="empty"):
        StopStrings(["a", ""])


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(TokenizerError, match="stop_token_ids"):
        TextStream(None, GenerationSettings(stop=["x"]))
