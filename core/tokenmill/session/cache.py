"""A session's cache: groups, each kept by its strategy, that move together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.contracts.answers import Declined
from tokenmill.contracts.backend import Context, Executable, Value
from tokenmill.contracts.cache import CacheGroup, CacheMark, CacheStrategy, GroupCache, LentPort
from tokenmill.contracts.step import Step
from tokenmill.errors import PortError, RewindError


class Cache:
    """Made by `open_cache`."""

    def __init__(self, groups: Sequence[tuple[CacheGroup, CacheStrategy, GroupCache]]) -> None:
        self._groups = tuple(groups)
        self._kept = tuple(kept for _, _, kept in groups)
        self._owners = {port.pair.past: kept for group, _, kept in groups for port in group.ports}
        self.strategies = {group.name: strategy.name for group, strategy, _ in groups}

    @property
    def capacity(self) -> int | None:
        """Tokens that fit; None when every group grows freely."""
        return min((kept.capacity for kept in self._kept if kept.capacity is not None), default=None)

    @property
    def nbytes(self) -> int:
        return sum(kept.nbytes for kept in self._kept)

    def before(self, step: Step) -> None:
        for kept in self._kept:
            kept.before(step)

    def write(self, step: Step, feeds: dict[str, Any]) -> None:
        """Add the pasts that are not bound to a step's feeds."""
        for kept in self._kept:
            feeds.update(kept.feeds(step))

    def validate(self, step: Step, outputs: Mapping[str, Value]) -> None:
        for kept in self._kept:
            kept.validate(step, outputs)

    def commit(self, step: Step, outputs: Mapping[str, Value]) -> None:
        for kept in self._kept:
            kept.commit(step, outputs)

    def abort(self, step: Step) -> None:
        for kept in self._kept:
            kept.abort(step)

    def rewind(self, length: int) -> int:
        """Bring every group to the longest length up to `length` that all of them reach; returns it.

        :raises RewindError: a group that cannot go back so far; nothing has changed.
        """
        for group, strategy, kept in self._groups:
            answer = kept.can_rewind(length)
            if isinstance(answer, Declined):
                raise RewindError(
                    f"the group '{group.name}' cannot be rewound from {kept.length} to {length} tokens",
                    why=f"{strategy.name}: {answer.reason}",
                    remedy=answer.remedy,
                )
        reached = length
        # A group that stops short takes the others, and perhaps itself, further back.
        while True:
            lengths = [kept.rewind(reached) for kept in self._kept]
            if min(lengths) == reached:
                return reached
            reached = min(lengths)

    def mark(self) -> tuple[CacheMark, ...]:
        return tuple([kept.mark() for kept in self._kept])

    def restore(self, marks: tuple[CacheMark, ...]) -> None:
        for kept, mark in zip(self._kept, marks, strict=True):
            kept.restore(mark)

    def reset(self) -> None:
        for kept in self._kept:
            kept.reset()

    def lend(self, ports: Sequence[str]) -> tuple[LentPort, ...]:
        return tuple(lent for port in ports for lent in self._owner(port).lend([port]))

    def read(self, port: str) -> npt.NDArray[Any]:
        return np.asarray(self._owner(port).read(port))

    def close(self) -> None:
        for kept in self._kept:
            kept.close()

    def _owner(self, port: str) -> GroupCache:
        if port not in self._owners:
            raise PortError(f"'{port}' is no past of this decoder", why=f"its pasts are {sorted(self._owners)}")
        return self._owners[port]


def open_cache(
    groups: Sequence[tuple[CacheGroup, CacheStrategy]], executable: Executable, context: Context, capacity: int
) -> Cache:
    """Open every group for one session; when one fails, those before it are closed."""
    opened: list[tuple[CacheGroup, CacheStrategy, GroupCache]] = []
    try:
        for group, strategy in groups:
            opened.append((group, strategy, strategy.open(group, executable, context, capacity)))
    except BaseException:
        for _, _, kept in opened:
            kept.close()
        raise
    return Cache(opened)
