"""What a device backend supplies.

Three objects, from long-lived to short-lived: a `Backend` is the device; an `Executable` is one compiled graph, immutable
and shared by threads; a `Context` is one session's side of it. They are Protocols, so that a plugin need not import a
base class; the version of the whole surface is `tokenmill.hooks.markers.API_VERSION`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from tokenmill.contracts.answers import Answer, Declined
from tokenmill.contracts.sourcing import Progress
from tokenmill.contracts.step import Step
from tokenmill.model.graph import OnnxGraph
from tokenmill.model.roles import IoSpec, PortPair
from tokenmill.trace import Tracer

#: What a port may hold on the host: an array (strings as `object`), a sequence as a list, an absent optional as None.
HostValue = Any


@runtime_checkable
class Value(Protocol):
    """One output of a step. Valid until the next `run` of its context."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def device(self) -> str:
        """`cpu`, `cuda:0`, ..."""

    def numpy(self) -> npt.NDArray[Any]:
        """The value on the host. On the CPU a view without a copy, valid as long as the value is."""

    def __dlpack__(self, **kwargs: Any) -> object: ...


@runtime_checkable
class Binding(Protocol):
    """Storage of a past/present pair (one binding, not two) that stays at one address while it lives.

    The graph sees the first `logical_length` entries of the sequence axis as past. A step writes its new entries behind
    them; `set_length` makes them past, or gives entries up. Growing beyond the capacity takes a new binding.
    """

    @property
    def pair(self) -> PortPair: ...

    @property
    def capacity(self) -> int:
        """Entries along the sequence axis."""

    @property
    def logical_length(self) -> int: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the storage: `[batch, heads, capacity, head_size]`, or of a fixed state."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def address(self) -> int:
        """Address on its device; constant."""

    @property
    def nbytes(self) -> int: ...

    def set_length(self, length: int) -> None:
        """Set the logical length. The contents do not move."""

    def read(self, length: int | None = None) -> npt.NDArray[Any]:
        """Copy the logical (or the first `length`) entries to the host. For snapshots, tests and debugging."""

    def write(self, value: npt.NDArray[Any]) -> None:
        """Replace the leading entries by a host array and set the logical length to its extent."""


@frozen
class CaptureDecline:
    """One reason why a step could not be recorded, with the node when one is to blame."""

    reason: str
    node: str = ""
    operator: str = ""
    domain: str = ""


@frozen
class CaptureReport(Declined):
    """The structured refusal of `Context.record`."""

    entries: tuple[CaptureDecline, ...] = ()


class Recording(Protocol):
    """A step as a list of launches with fixed buffers; between replays only the buffers' contents change."""

    def replay(self) -> bool:
        """Run it again. False says that the recording was retired meanwhile: the outputs are valid, it is not."""

    def drop(self) -> None: ...


@frozen
class ContextStats:
    """Counters of one context, for `Session.stats()`."""

    runs: int = 0
    arena_bytes: int = 0
    binding_bytes: int = 0
    bindings: Mapping[str, int] = field(factory=dict)
    """Device address by past port."""
    transfer_calls: int = 0
    transfer_bytes: int = 0
    host_fallbacks: int = 0
    """Nodes that ran through the host fallback."""


class Context(Protocol):
    """One session's side of an executable. Used by one thread at a time."""

    def bind(self, pair: PortPair, shape: Sequence[int], dtype: np.dtype[Any]) -> Binding:
        """Give a pair persistent storage, zeroed. From then on the pair is neither fed nor fetched.

        :param shape: with the capacity on the sequence axis.
        :raises ExecutionError: when the executable does not append to it in place.
        """

    def adopt(self, binding: Binding, port: str) -> None:
        """Let `port` read another context's binding on the same device: lending without a copy."""

    def unbind(self, pair: PortPair) -> None:
        """Release a pair's storage."""

    def run(self, feeds: Mapping[str, HostValue], step: Step | None = None) -> Mapping[str, Value]:
        """Run the graph once. Releases the GIL while it computes.

        :param feeds: host values of every input that is not bound, by port name.
        :param step: what of the logits is wanted; None runs the whole graph as it stands and returns every output. With
            `last` and `token` the logits may come with the last row alone.
        :raises OperatorError: inputs that an operator cannot take.
        """

    def record(self, feeds: Mapping[str, HostValue], step: Step) -> Recording | CaptureReport:
        """Run the step and keep it for replay; a refusal has run nothing."""

    def take_error(self) -> int:
        """The error word since the last call; 0 is none. Reading clears it."""

    def stats(self) -> ContextStats: ...

    def close(self) -> None:
        """Release everything. Closing twice is harmless."""


@frozen
class OperatorUse:
    """How one node of the graph will run."""

    node: str
    operator: str
    domain: str
    version: int
    runs_on: str
    """Name of the backend, or `host fallback`."""


class Executable(Protocol):
    """A compiled graph: weights and plans. Immutable; any number of contexts and threads share it."""

    @property
    def graph(self) -> OnnxGraph: ...

    @property
    def device(self) -> str: ...

    @property
    def preferred_rows(self) -> int:
        """Query rows into which the session splits a prefill. Backends never split."""

    @property
    def row_invariant_rows(self) -> int:
        """Up to this many query rows, a row's bits depend neither on the number of rows nor on threads."""

    @property
    def weight_bytes(self) -> int:
        """Memory that the packed weights take."""

    def appends_in_place(self, pair: PortPair) -> Answer:
        """Whether every consumer of the past is append-aware and owns the paired present, from the kernels' declarations."""

    def tolerates_capacity(self, port: str) -> Answer:
        """Whether every consumer of a port whose extent grows accepts it exposed at capacity."""

    def operators(self) -> Sequence[OperatorUse]:
        """Every node with where it runs, subgraphs included."""

    def open(self, tracer: Tracer = ...) -> Context: ...

    def close(self) -> None: ...


@runtime_checkable
class Backend(Protocol):
    """A device. Made by the descriptor's factory: `factory(options, fallback)`."""

    @property
    def name(self) -> str: ...

    def probe(self) -> Answer:
        """Whether it can run here: drivers, instruction sets, libraries. Cheap, and never raises."""

    def compile(self, graph: OnnxGraph, io: IoSpec | None = None, progress: Progress | None = None) -> Executable:
        """Compile a graph. `io` names the roles of a decoder's ports; None is any graph.

        :param progress: told of what takes long: packing weights, compiling kernels.

        :raises UnsupportedOperatorError: names every operator that neither the backend nor its fallback has.
        """
