"""`in_place`: one buffer per pair at capacity; attention appends to it, and only the logical length moves."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from attrs import frozen
from tokenmill.contracts.answers import Accepted, Answer, Declined
from tokenmill.contracts.backend import Binding, Context, Executable, Value
from tokenmill.contracts.cache import CacheGroup, CacheMark, LentPort
from tokenmill.contracts.step import Step
from tokenmill.errors import OutputError, RewindError

from tokenmill_strategies.caches.capacity import check_capacity
from tokenmill_strategies.caches.lending import Lending
from tokenmill_strategies.caches.overwriting import Overwriting
from tokenmill_strategies.caches.types import ATTENTION_TYPES, declined_type


@frozen(kw_only=True)
class InPlaceOptions:
    """:param dtype: of cached values; only the graph's own can be kept."""

    dtype: Literal["auto", "float32", "float16"] = "auto"


class InPlace:
    """The strategy."""

    name = "in_place"

    def __init__(self, options: InPlaceOptions | None = None) -> None:
        self._options = options or InPlaceOptions()

    def accepts(self, group: CacheGroup, executable: Executable) -> Answer:
        """All pairs or none: a group's entries move together."""
        if group.kind not in ("growing", "windowed"):
            return Declined(f"it keeps what grows, and the group is {group.kind}")
        for port in group.ports:
            if len(port.shape) != 4 or port.sequence_axis != 2:
                return Declined(f"'{port.past}' is not [batch, heads, length, head_size]")
            if port.dtype not in ATTENTION_TYPES:
                return Declined(f"'{port.past}' is neither float32 nor a float of 16 bits")
            if not port.complete:
                return Declined(
                    f"'{port.past}' has an extent that nothing states", "state head_size in genai_config.json"
                )
            answer = executable.appends_in_place(port.pair)
            if isinstance(answer, Declined):
                return answer
        return declined_type(group, self._options.dtype) or Accepted(f"{len(group.ports)} buffers at capacity")

    def open(self, group: CacheGroup, executable: Executable, context: Context, capacity: int) -> InPlaceCache:
        bindings: list[Binding] = []
        try:
            for port in group.ports:
                bindings.append(context.bind(port.pair, port.extent(capacity), port.dtype))
        except BaseException:
            for binding in bindings:
                context.unbind(binding.pair)
            raise
        return InPlaceCache(bindings, context, capacity, visible=executable.device == "cpu")


class InPlaceCache:
    """:param visible: the host can read the buffers at their addresses."""

    def __init__(self, bindings: Sequence[Binding], context: Context, capacity: int, *, visible: bool) -> None:
        self._bindings = tuple(bindings)
        self._by_port = {binding.pair.past: binding for binding in bindings}
        self._presents = frozenset(binding.pair.present for binding in bindings)
        self._context, self._visible = context, visible
        self._lending = Lending()
        self._overwriting = Overwriting()
        self.capacity: int = capacity
        self.length = 0

    @property
    def nbytes(self) -> int:
        return sum(binding.nbytes for binding in self._bindings)

    def before(self, step: Step) -> None:
        check_capacity(step, self.capacity)
        self._overwriting.write(step.position_start, step.mask_length)

    def feeds(self, step: Step) -> Mapping[str, Any]:
        return {}

    def validate(self, step: Step, outputs: Mapping[str, Value]) -> None:
        if not self._presents.isdisjoint(outputs):
            raise OutputError(
                f"the backend gave {sorted(self._presents.intersection(outputs))}, which are bound",
                why="a bound present is appended to its past, and not an output",
                remedy='this is a defect of the backend; cache.strategy = "copied" avoids it',
            )

    def commit(self, step: Step, outputs: Mapping[str, Value]) -> None:
        self._set_length(step.mask_length)

    def abort(self, step: Step) -> None:
        """What was appended lies behind the logical length."""

    def can_rewind(self, length: int) -> Answer:
        return Accepted()

    def rewind(self, length: int) -> int:
        self._set_length(length)
        return length

    def mark(self) -> CacheMark:
        return CacheMark(self.length, self._overwriting.now())

    def restore(self, mark: CacheMark) -> None:
        kept = self._overwriting.kept_since(mark.state)
        if kept is not None and kept < mark.length:
            raise RewindError(
                f"cannot go back to a mark at {mark.length} tokens",
                why=f"the buffer was rewound to {kept} and written to since",
                remedy=f'rewind to {kept} and feed the tokens again, or keep marks with cache.strategy = "copied"',
            )
        self._set_length(mark.length)

    def reset(self) -> None:
        self._set_length(0)

    def lend(self, ports: Sequence[str]) -> Sequence[LentPort]:
        return [self._lent(port, self._by_port[port]) for port in ports]

    def read(self, port: str) -> npt.NDArray[Any]:
        return self._by_port[port].read()

    def close(self) -> None:
        self._lending.move()
        for binding in self._bindings:
            self._context.unbind(binding.pair)

    def _set_length(self, length: int) -> None:
        self._lending.move()
        for binding in self._bindings:
            binding.set_length(length)
        self.length = length

    def _lent(self, port: str, binding: Binding) -> LentPort:
        return LentPort(port, self.length, self._view(binding), self._lending.check_of(port), binding)

    def _view(self, binding: Binding) -> npt.NDArray[Any] | None:
        if not self._visible:
            return None
        memory = memoryview((ctypes.c_byte * binding.nbytes).from_address(binding.address))
        view = np.frombuffer(memory, binding.dtype).reshape(binding.shape)[:, :, : self.length]
        view.flags.writeable = False
        return view
