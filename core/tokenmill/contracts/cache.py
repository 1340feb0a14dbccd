"""Who keeps past and present, and how they grow, shrink and get lent.

A session's cache is a composition of groups. A *strategy* is the idea (chosen once per group, stateless); what it opens is
the *group cache*, which holds one session's state. Protocol of a step: `before`, `feeds`, run, `validate`, then `commit` or
`abort`. Until `commit` nothing has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from attrs import frozen

from tokenmill.contracts.answers import Answer
from tokenmill.contracts.backend import Binding, Context, Executable, Value
from tokenmill.contracts.step import Step
from tokenmill.model.graph import Port
from tokenmill.model.roles import PortPair

GroupKind = Literal["growing", "windowed", "recurrent", "borrowed"]


@frozen
class CachedPort:
    """One past/present pair of a group with its resolved geometry.

    :param shape: of the past, batch 1, with `sequence_axis` at extent 0 for growing state, full extent for fixed state. Another
        extent of 0 is one that nothing states: it shows in the first present.
    :param sequence_axis: axis that grows with the tokens; None for a recurrent state.
    """

    pair: PortPair
    past: Port
    present: Port
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sequence_axis: int | None

    @property
    def complete(self) -> bool:
        """Whether every extent is known before the first step."""
        return all(extent > 0 for axis, extent in enumerate(self.shape) if axis != self.sequence_axis)

    def extent(self, length: int) -> tuple[int, ...]:
        """The shape with `length` entries on the sequence axis."""
        if self.sequence_axis is None:
            return self.shape
        return (*self.shape[: self.sequence_axis], length, *self.shape[self.sequence_axis + 1 :])


@frozen
class CacheGroup:
    """Pairs that are kept the same way. `kind` says what their shapes do, not how they are stored."""

    name: str
    kind: GroupKind
    ports: tuple[CachedPort, ...]


@frozen
class CacheMark:
    """A point to come back to: the length, and what a group needs to restore it (opaque)."""

    length: int
    state: Any


@frozen(eq=False)
class LentPort:
    """A borrowed view of one past port, without a copy. `check()` raises StaleViewError once the lender has moved on.

    :param value: a read-only array of the first `length` entries; None where the host cannot see them.
    :param binding: the lender's storage, for `Context.adopt` on the same device; None when it has none.
    """

    port: str
    length: int
    value: npt.NDArray[Any] | None
    check: Callable[[], None]
    binding: Binding | None = None


class GroupCache(Protocol):
    """One group's state in one session."""

    @property
    def length(self) -> int: ...

    @property
    def capacity(self) -> int | None:
        """Entries that fit; None when it grows freely."""

    @property
    def nbytes(self) -> int: ...

    def before(self, step: Step) -> None:
        """Check that the step fits. Raises CapacityError before anything changes."""

    def feeds(self, step: Step) -> Mapping[str, Any]:
        """Host values of the past ports that are not bound."""

    def validate(self, step: Step, outputs: Mapping[str, Value]) -> None:
        """Check the present outputs. Raises OutputError."""

    def commit(self, step: Step, outputs: Mapping[str, Value]) -> None:
        """Take the present over and advance. Cannot fail."""

    def abort(self, step: Step) -> None:
        """The step failed after `before`: be as if it had not been."""

    def can_rewind(self, length: int) -> Answer: ...

    def rewind(self, length: int) -> int:
        """Go back to `length`, or to a shorter length that can be reached; returns it. The session feeds the rest again."""

    def mark(self) -> CacheMark: ...

    def restore(self, mark: CacheMark) -> None: ...

    def reset(self) -> None:
        """Forget everything."""

    def lend(self, ports: Sequence[str]) -> Sequence[LentPort]: ...

    def read(self, port: str) -> npt.NDArray[Any]:
        """A copy of one past port's logical contents, for tests and debugging."""

    def close(self) -> None: ...


class CacheStrategy(Protocol):
    """An idea of keeping KV. Made by the descriptor's factory: `factory(options)`."""

    @property
    def name(self) -> str: ...

    def accepts(self, group: CacheGroup, executable: Executable) -> Answer:
        """Whether it can keep this group on this executable. All answers are kept for `explain`."""

    def open(self, group: CacheGroup, executable: Executable, context: Context, capacity: int) -> GroupCache:
        """State for one session. `capacity` is the bound on tokens that the session states."""
