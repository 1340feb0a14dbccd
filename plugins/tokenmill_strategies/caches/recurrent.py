"""`recurrent`: states of fixed extent, replaced whole at each step. Snapshots make a way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import field, frozen
from attrs.validators import ge
from tokenmill.contracts.answers import Accepted, Answer, Declined
from tokenmill.contracts.backend import Context, Executable, Value
from tokenmill.contracts.cache import CachedPort, CacheGroup, CacheMark, LentPort
from tokenmill.contracts.step import Step

from tokenmill_strategies.caches.lending import Lending
from tokenmill_strategies.caches.presents import present_array

Arrays = tuple[npt.NDArray[Any], ...]


@frozen(kw_only=True)
class RecurrentOptions:
    """:param snapshots: how many earlier states are kept for rewinding; 0 always starts again from the first token.
    :param snapshot_bytes: memory that they may take.
    """

    snapshots: int = field(default=8, validator=ge(0))
    snapshot_bytes: int = field(default=256 << 20, validator=ge(0))


class Recurrent:
    """The strategy."""

    name = "recurrent"

    def __init__(self, options: RecurrentOptions | None = None) -> None:
        self._options = options or RecurrentOptions()

    def accepts(self, group: CacheGroup, executable: Executable) -> Answer:
        if group.kind != "recurrent":
            return Declined(f"it keeps states of fixed extent, and the group is {group.kind}")
        return Accepted(f"up to {self._options.snapshots} snapshots")

    def open(self, group: CacheGroup, executable: Executable, context: Context, capacity: int) -> RecurrentCache:
        return RecurrentCache(group.ports, self._options)


class RecurrentCache:
    """Arrays are replaced and never written to, so that a snapshot is a reference.

    A snapshot is taken at the end of a prefill, where conversations part, and before a verify, whose drafts may be
    rejected. Of too many the oldest one goes.
    """

    capacity = None

    def __init__(self, ports: tuple[CachedPort, ...], options: RecurrentOptions) -> None:
        self._ports = ports
        self._places = {port.pair.past: index for index, port in enumerate(ports)}
        self._zeros: Arrays = tuple(np.zeros(port.shape, port.dtype) for port in ports)
        size = sum(array.nbytes for array in self._zeros)
        self._kept = min(options.snapshots, options.snapshot_bytes // max(size, 1))
        self._snapshots: dict[int, Arrays] = {}
        self._lending = Lending()
        self._past = self._zeros
        self._present: Arrays | None = None
        self.length = 0

    @property
    def nbytes(self) -> int:
        arrays = {id(array): array for state in (self._past, *self._snapshots.values()) for array in state}
        return sum(array.nbytes for array in arrays.values())

    def before(self, step: Step) -> None:
        """It fits whatever the length."""

    def feeds(self, step: Step) -> Mapping[str, Any]:
        return {port.pair.past: array for port, array in zip(self._ports, self._past, strict=True)}

    def validate(self, step: Step, outputs: Mapping[str, Value]) -> None:
        found = [present_array(port, outputs, step.mask_length) for port in self._ports]
        # The backend's buffers are its own from its next run on. Copied here, where running out of memory may fail.
        self._present = tuple(np.array(array, order="C") for array in found)

    def commit(self, step: Step, outputs: Mapping[str, Value]) -> None:
        assert self._present is not None
        if step.kind == "verify":
            self._keep(self.length, self._past)
        self._replace(self._present, step.mask_length)
        self._present = None
        if step.kind == "prefill":
            self._keep(self.length, self._past)

    def abort(self, step: Step) -> None:
        self._present = None

    def can_rewind(self, length: int) -> Answer:
        reached = self._reachable(length)
        return Accepted(f"{length - reached} tokens have to be fed again" if reached < length else "")

    def rewind(self, length: int) -> int:
        if length >= self.length:
            return self.length
        reached = self._reachable(length)
        self._replace(self._snapshots.get(reached, self._zeros), reached)
        self._forget(reached)
        return reached

    def mark(self) -> CacheMark:
        return CacheMark(self.length, (self._past, dict(self._snapshots)))

    def restore(self, mark: CacheMark) -> None:
        self._present = None
        past, snapshots = mark.state
        self._snapshots = dict(snapshots)
        if past is not self._past:
            self._replace(past, mark.length)

    def reset(self) -> None:
        self._present = None
        self._snapshots.clear()
        self._replace(self._zeros, 0)

    def lend(self, ports: Sequence[str]) -> Sequence[LentPort]:
        return [LentPort(port, self.length, self._view(port), self._lending.check_of(port)) for port in ports]

    def read(self, port: str) -> npt.NDArray[Any]:
        return self._past[self._places[port]].copy()

    def close(self) -> None:
        self._snapshots.clear()
        self._replace((), 0)

    def _view(self, port: str) -> npt.NDArray[Any]:
        view = self._past[self._places[port]].view()
        view.flags.writeable = False
        return view

    def _replace(self, arrays: Arrays, length: int) -> None:
        self._lending.move()
        self._past, self.length = arrays, length

    def _reachable(self, length: int) -> int:
        if length >= self.length:
            return self.length
        return max((kept for kept in self._snapshots if kept <= length), default=0)

    def _keep(self, length: int, state: Arrays) -> None:
        self._snapshots.pop(length, None)
        if length and self._kept:
            self._snapshots[length] = state
            while len(self._snapshots) > self._kept:
                del self._snapshots[next(iter(self._snapshots))]

    def _forget(self, length: int) -> None:
        """Snapshots behind `length` are of tokens that are gone."""
        for kept in [kept for kept in self._snapshots if kept > length]:
            del self._snapshots[kept]
