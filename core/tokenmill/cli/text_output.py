"""A model's text on stdout: the same bytes wherever it is piped, and harmless on a terminal."""

from __future__ import annotations

import io
import re
import sys

#: A model's text must not move the cursor or change the terminal's title.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class TextOutput:
    """Piped text is UTF-8 with `\\n`, on every platform and in every locale."""

    def __init__(self) -> None:
        self._stream = sys.stdout
        self._terminal = self._stream.isatty()
        if isinstance(self._stream, io.TextIOWrapper):
            if self._terminal:
                self._stream.reconfigure(errors="replace")
            else:
                self._stream.reconfigure(encoding="utf-8", errors="replace", newline="\n")

    def write(self, text: str) -> None:
        """Show it at once. :raises BrokenPipeError: nobody reads any more."""
        self._stream.write(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text) if self._terminal else text)
        self._stream.flush()
