"""The text of a generation as it comes: tokens to characters, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.contracts.processing import GenerationSettings
from tokenmill.errors import TokenizerError
from tokenmill.generation.detokenizing import Detokenizer, detokenizer
from tokenmill.generation.stop_strings import StopStrings
from tokenmill.generation.tokenizer import Tokenizer


class _NoText:
    """Of a model without a tokenizer."""

    def add(self, token: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


class TextStream:
    """:param tokenizer: None gives no text.
    :param context: tokens that the text continues; see `detokenizer`.
    :raises TokenizerError: stop strings without a tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer | None, settings: GenerationSettings, context: Sequence[int] = ()) -> None:
        if tokenizer is None and settings.stop:
            raise TokenizerError(
                "stop strings need text, and the model has no tokenizer.json", remedy="use generation.stop_token_ids"
            )
        self._characters: Detokenizer = _NoText() if tokenizer is None else detokenizer(tokenizer, context)
        self._stops = StopStrings(settings.stop)
        self._unstoppable = settings.min_new_tokens

    def add(self, token: int, count: int) -> tuple[str, bool]:
        """The text that is certain with the `count`-th token, and whether a stop string ends it.

        A stop string counts if it begins behind `min_new_tokens`.
        """
        text = self._characters.add(token)
        return (text, False) if count <= self._unstoppable else self._stops.feed(text)

    def flush(self) -> tuple[str, bool]:
        """The rest, and whether it holds a stop string."""
        text, stopped = self._stops.feed(self._characters.flush())
        return (text, True) if stopped else (text + self._stops.flush(), False)
