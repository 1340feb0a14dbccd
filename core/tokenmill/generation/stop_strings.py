"""Stop strings over token borders: what could begin one is held back until it is decided."""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.errors import GenerationError


class StopStrings:
    """Passes text on up to the first stop string.

    The one that is complete first counts, and of two that end together the longer: so where tokens end changes nothing.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """:raises GenerationError: an empty stop string."""
        if not all(stops):
            raise GenerationError("generation.stop holds an empty text", why="it would end before the first token")
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Text that is certain now, and whether a stop string was found: nothing may be fed then."""
        text = self._held + text
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)[1]], True
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """What is held back, once no more text comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text with which the stop string begins."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-size:])), 0)
