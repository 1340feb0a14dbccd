"""Text that grows with its tokens, at a cost per token that does not depend on how many there are.

Two ways, both exact: the pieces together are what the tokenizer makes of all tokens at once, special ones left out.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from typing import Any, Protocol

from tokenmill.generation.tokenizer import Tokenizer

#: Tokens before the first one that may bear on how it reads: a character is at most four, and a word's beginning one.
_CONTEXT = 8


class Detokenizer(Protocol):
    def add(self, token: int) -> str:
        """What is certain of the text with one more token; empty while a character is incomplete."""

    def flush(self) -> str:
        """The rest, once no more tokens come. An incomplete character reads as U+FFFD."""


def detokenizer(tokenizer: Tokenizer, context: Sequence[int] = ()) -> Detokenizer:
    """A detokenizer of a new text.

    :param context: tokens that the text continues. They decide on a leading space, and may end within a character.
    """
    kinds = [step.get("type") for step in _decoder_steps(tokenizer)]
    made: Detokenizer = (
        ByteDetokenizer(tokenizer)
        if [kind for kind in kinds if kind != "Fuse"] == ["ByteLevel"]
        else WindowDetokenizer(tokenizer, byte_fallback="ByteFallback" in kinds)
    )
    for token in context[-_CONTEXT:]:
        made.add(token)
    return made


def _decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    if tokenizer.backend.decoder is None:
        return []
    state: dict[str, Any] = json.loads(tokenizer.backend.decoder.__getstate__())
    return state["decoders"] if state.get("type") == "Sequence" else [state]


def _byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level vocabularies spell bytes (Radford et al. 2019, GPT-2): printable Latin-1 ones
    stand for themselves, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


class ByteDetokenizer:
    """For byte-level vocabularies: every token is a run of bytes, and the text is their UTF-8."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        return self._utf8.decode(self._bytes(token))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)

    def _bytes(self, token: int) -> bytes:
        spelling = None if token in self._tokenizer.special_ids else self._tokenizer.token(token)
        if spelling is None:
            return b""
        values = [_BYTE_OF.get(character) for character in spelling]
        # Added tokens may hold characters outside the alphabet: they are text as they stand.
        return spelling.encode() if None in values else bytes(values)  # type: ignore[arg-type]


class WindowDetokenizer:
    """For any other vocabulary: new tokens are decoded together with those before them, which decide on spaces.

    :param byte_fallback: the vocabulary has tokens of one byte. A run of them is text only as a whole: until it ends,
        one more byte may make all of it invalid.
    """

    def __init__(self, tokenizer: Tokenizer, *, byte_fallback: bool) -> None:
        self._tokenizer = tokenizer
        self._byte_fallback = byte_fallback
        self._before: list[int] = []  # their text is out, and is not empty
        self._new: list[int] = []

    def add(self, token: int) -> str:
        spelling = None if token in self._tokenizer.special_ids else self._tokenizer.token(token)
        if spelling is None:
            return ""
        if self._byte_fallback and _is_byte(spelling):
            self._new.append(token)
            return ""
        # What follows a run of bytes ends it, and is decoded behind it.
        self._new.append(token)
        return self.flush()

    def flush(self) -> str:
        known = self._tokenizer.decode(self._before) if self._before else ""
        text = self._tokenizer.decode(self._before + self._new)
        if len(text) <= len(known):
            return ""
        self._before, self._new = self._new, []
        return text[len(known) :]


def _is_byte(spelling: str) -> bool:
    return len(spelling) == 6 and spelling.startswith("<0x") and spelling.endswith(">")
