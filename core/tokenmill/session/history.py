"""The tokens that a session was fed, and which of them came with values that it did not keep."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field


@define
class History:
    """Grows with each step and is cut by a rewind. A recurrent state is rewound by feeding its tokens again."""

    tokens: list[int] = field(factory=list)
    _routed: list[range] = field(factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Sequence[int], routed: bool) -> None:
        """:param routed: the step also had values from the caller, without which it cannot be repeated."""
        if routed:
            self._routed.append(range(len(self.tokens), len(self.tokens) + len(tokens)))
        self.tokens.extend(tokens)

    def cut(self, length: int) -> None:
        """Forget everything from `length` on."""
        del self.tokens[length:]
        self._routed = [range(span.start, min(span.stop, length)) for span in self._routed if span.start < length]

    def first_routed(self, start: int, stop: int) -> int | None:
        """The first position in `[start, stop)` whose step had values from the caller."""
        return next((max(span.start, start) for span in self._routed if span.start < stop and span.stop > start), None)

    def copy(self) -> History:
        return History(list(self.tokens), list(self._routed))
