"""Views of a cache that turn stale when the cache moves on."""

from __future__ import annotations

from collections.abc import Callable

from tokenmill.errors import StaleViewError


class Lending:
    """Counts the moves of one cache; a view is valid as long as the count that it was lent at."""

    def __init__(self) -> None:
        self._moves = 0

    def move(self) -> None:
        """The cache has changed: whatever is lent is stale."""
        self._moves += 1

    def check_of(self, port: str) -> Callable[[], None]:
        """A check for a view of `port` that is lent now; it raises StaleViewError after the next move."""
        lent_at = self._moves

        def check() -> None:
            if self._moves != lent_at:
                raise StaleViewError(
                    f"a view of '{port}' was used after its lender moved on",
                    why="it is valid until the lender's next step or rewind",
                    remedy="lend it again after each step",
                )

        return check
