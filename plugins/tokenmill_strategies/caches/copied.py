"""`copied`: past goes in as a feed and present comes back as a copy. Works for any graph on any backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from attrs import evolve, field, frozen
from attrs.validators import ge, optional
from tokenmill.contracts.answers import Accepted, Answer, Declined
from tokenmill.contracts.backend import Context, Executable, Value
from tokenmill.contracts.cache import CacheGroup, CacheMark, LentPort
from tokenmill.contracts.step import Step

from tokenmill_strategies.caches.capacity import check_capacity
from tokenmill_strategies.caches.lending import Lending
from tokenmill_strategies.caches.presents import present_array
from tokenmill_strategies.caches.types import declined_type

Arrays = tuple[npt.NDArray[Any], ...]


@frozen(kw_only=True)
class CopiedOptions:
    """:param max_len: bound on tokens; None grows freely. `cache.max_len` counts when it is stated.
    :param dtype: of cached values; only the graph's own can be kept.
    """

    max_len: int | None = field(default=None, validator=optional(ge(1)))
    dtype: Literal["auto", "float32", "float16"] = "auto"


class Copied:
    """The strategy."""

    name = "copied"

    def __init__(self, options: CopiedOptions | None = None) -> None:
        self._options = options or CopiedOptions()

    def accepts(self, group: CacheGroup, executable: Executable) -> Answer:
        if group.kind not in ("growing", "windowed"):
            return Declined(f"it keeps what grows, and the group is {group.kind}")
        return declined_type(group, self._options.dtype) or Accepted("a round trip through the host at each step")

    def open(self, group: CacheGroup, executable: Executable, context: Context, capacity: int) -> CopiedCache:
        """:param capacity: reserves nothing, and bounds nothing: `max_len` does."""
        return CopiedCache(group, self._options.max_len)


class CopiedCache:
    """Arrays are replaced and never written to, so that a mark is a reference."""

    def __init__(self, group: CacheGroup, capacity: int | None) -> None:
        self._ports = group.ports
        self._complete = all(port.complete for port in group.ports)
        self.capacity = capacity
        self._lending = Lending()
        self._places = {port.pair.past: index for index, port in enumerate(group.ports)}
        self._past = self._empty()
        self._present: Arrays | None = None
        self.length = 0

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._past)

    def before(self, step: Step) -> None:
        check_capacity(step, self.capacity)

    def feeds(self, step: Step) -> Mapping[str, Any]:
        return {port.pair.past: array for port, array in zip(self._ports, self._past, strict=True)}

    def validate(self, step: Step, outputs: Mapping[str, Value]) -> None:
        found = [present_array(port, outputs, step.mask_length) for port in self._ports]
        # The backend's buffers are its own from its next run on. Copied here, where running out of memory may fail.
        self._present = tuple(np.array(array, order="C") for array in found)

    def commit(self, step: Step, outputs: Mapping[str, Value]) -> None:
        assert self._present is not None
        self._replace(self._present, step.mask_length)
        self._present = None

    def abort(self, step: Step) -> None:
        self._present = None

    def can_rewind(self, length: int) -> Answer:
        return Accepted()

    def rewind(self, length: int) -> int:
        if length < self.length:
            cuts = [
                array[(slice(None),) * (port.sequence_axis or 0) + (slice(length),)]
                for port, array in zip(self._ports, self._past, strict=True)
            ]
            # Copies: a slice would keep the whole array alive.
            self._replace(tuple(np.array(cut, order="C") for cut in cuts), length)
        return length

    def mark(self) -> CacheMark:
        return CacheMark(self.length, self._past)

    def restore(self, mark: CacheMark) -> None:
        self._present = None
        if mark.state is not self._past:
            self._replace(mark.state, mark.length)

    def reset(self) -> None:
        self._present = None
        self._replace(self._empty(), 0)

    def lend(self, ports: Sequence[str]) -> Sequence[LentPort]:
        return [LentPort(port, self.length, self._view(port), self._lending.check_of(port)) for port in ports]

    def read(self, port: str) -> npt.NDArray[Any]:
        return self._past[self._places[port]].copy()

    def close(self) -> None:
        self._replace((), 0)

    def _view(self, port: str) -> npt.NDArray[Any]:
        view = self._past[self._places[port]].view()
        view.flags.writeable = False
        return view

    def _replace(self, arrays: Arrays, length: int) -> None:
        self._lending.move()
        self._past, self.length = arrays, length
        if length and not self._complete:
            self._ports = tuple(
                evolve(port, shape=_learned(port.sequence_axis, array))
                for port, array in zip(self._ports, arrays, strict=True)
            )
            self._complete = True

    def _empty(self) -> Arrays:
        return tuple(np.zeros(port.extent(0), port.dtype) for port in self._ports)


def _learned(sequence_axis: int | None, array: npt.NDArray[Any]) -> tuple[int, ...]:
    """Extents that only a present tells, with nothing on the sequence axis."""
    return tuple(0 if axis == sequence_axis else extent for axis, extent in enumerate(array.shape))
