"""Which entries of a buffer that is rewound and written again still are what they were."""

from __future__ import annotations

from attrs import define, field


@define
class Overwriting:
    """Remembers writes into entries that had been written before, as (serial number, first entry)."""

    _serial: int = 0
    _end: int = 0
    _overwritten: list[tuple[int, int]] = field(factory=list)

    def write(self, start: int, end: int) -> None:
        """Entries from `start` to `end` are written, and whatever lay behind `start` counts as lost."""
        if start < self._end:
            self._serial += 1
            # An earlier write behind this one says nothing more.
            while self._overwritten and self._overwritten[-1][1] >= start:
                self._overwritten.pop()
            self._overwritten.append((self._serial, start))
        self._end = end

    def now(self) -> int:
        """A moment to ask about later."""
        return self._serial

    def kept_since(self, moment: int) -> int | None:
        """How many leading entries are as they were at that moment; None is all of them."""
        # First entries rise along the list, so the first late one is the lowest.
        return next((start for serial, start in self._overwritten if serial > moment), None)
