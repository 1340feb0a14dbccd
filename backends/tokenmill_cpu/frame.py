"""What operators have at hand during a run: launches, bound storage, scratch memory. One per context."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenmill.model.program import Instruction
from tokenmill.trace import NO_TRACE, Tracer

from tokenmill_cpu.binding import PortBinding
from tokenmill_cpu.launch import Kernel
from tokenmill_cpu.pool import DecodePool

_BLOCK_BYTES = 512

#: Launches that wait at most: while they are recorded, and else, where they keep arrays alive for little gain.
_RECORDED_LAUNCHES = 4096
_WAITING_LAUNCHES = 8

#: Items up to which splitting a launch costs more than it gains.
_SMALL = 20_000


class Frame:
    """State of one context's runs.

    :param threads: parts that a large launch is split into.
    """

    def __init__(self, pool: DecodePool, threads: int, tracer: Tracer = NO_TRACE) -> None:
        self.threads = threads
        self.last_row_only = False
        """Whether of the logits only the last row is wanted."""
        self.host_calls = 0
        """Nodes that ran through the host fallback."""
        self.bound: dict[int, PortBinding] = {}
        """Bound storage by the `id` of the view that stands for the past during a run."""
        self.remembered: dict[Any, Any] = {}
        """What operators of one run tell each other, so that layers do not compute it again."""
        self._pool, self._tracer = pool, tracer
        self._traced: set[Instruction] = set()
        self._error = np.zeros(1, np.int64)
        self._error_address = self._error.ctypes.data
        self.queueing = False
        """Whether launches wait, until `finish`, to be run one behind the other without Python between them."""
        self._waiting = 0
        # Arrays held for the launches that wait, and behind them those for the next one.
        self._held: list[npt.NDArray[Any]] = []
        self._owned = 0
        self._blocks = np.zeros((_RECORDED_LAUNCHES, _BLOCK_BYTES // 8), np.int64)
        self._block_bytes = self._blocks.reshape(-1).data.cast("B")
        # Of each launch the kernel's address, the block's and the number of parts.
        self._queue = np.zeros((_RECORDED_LAUNCHES, 3), np.int64)
        self._queue[:, 1] = self._blocks.ctypes.data + _BLOCK_BYTES * np.arange(_RECORDED_LAUNCHES)
        self._entries = self._queue.reshape(-1).data
        self._queue_address = self._queue.ctypes.data
        self._scratch: dict[str, _Scratch] = {}
        self._room = _WAITING_LAUNCHES
        self.recording: Recording | None = None
        """What is being recorded, while launches wait for that."""

    def launch(self, kernel: Kernel, parts: int, *words: Any) -> None:
        """Run a kernel, split into `parts`, behind all that were launched before it: now, or when `finish` is called.

        :param words: of its argument block, behind the error word. Arrays that they point to are given to `hold`.
        """
        index = self._waiting
        kernel.pack_into(self._block_bytes, index * _BLOCK_BYTES, self._error_address, *words)
        self._entries[3 * index] = kernel.address
        self._entries[3 * index + 2] = parts
        self._waiting, self._owned = index + 1, len(self._held)
        if not self.queueing or index + 1 == self._room:
            self.finish()

    def hold(self, array: npt.NDArray[Any]) -> int:
        """Address of an array, which stays alive until the next launch has been run."""
        self._held.append(array)
        return address_of(array)

    @property
    def waits(self) -> bool:
        """Whether there are launches that wait."""
        return self._waiting > 0

    def finish(self) -> None:
        """Run the launches that wait; returns when all parts have finished. Then memory is what it should be."""
        if self.recording is not None:
            self.recording.spoilt = True
        count, self._waiting = self._waiting, 0
        try:
            if count:
                self._pool.run(self._queue_address, count)
        finally:
            del self._held[: self._owned]
            self._owned = 0

    def drop(self) -> None:
        """Forget launches that wait: the run that wanted them was given up."""
        self._waiting = self._owned = 0
        self._held.clear()
        self.queueing = False
        self._stop_recording()

    def record(self, given: Sequence[npt.NDArray[Any]]) -> None:
        """Keep the launches that follow, until `recorded`.

        :param given: arrays that a replay fills before it runs them.
        """
        self.finish()
        self.queueing, self._room = True, _RECORDED_LAUNCHES
        self.recording = Recording({id(array) for array in given})

    def recorded(self) -> Recording | None:
        """Run the launches that were kept. None when an operator did more than launch: a replay would lack that."""
        recording, count = self.recording, self._waiting
        assert recording is not None
        self._stop_recording()
        if not recording.spoilt:
            recording.keep(self._queue[:count], self._blocks[:count], self._held, self._scratch.values())
        self.finish()
        return None if recording.spoilt else recording

    def _stop_recording(self) -> None:
        self.recording, self._room = None, _WAITING_LAUNCHES

    def replay(self, recording: Recording) -> None:
        self._pool.run(recording.address, recording.count)

    def parts(self, items: int, pieces: int) -> int:
        """How many parts a launch on so many items is split into, of which `pieces` can be told apart."""
        return 1 if items < _SMALL else min(self.threads, pieces)

    def scratch(self, name: str, nbytes: int) -> int:
        """Address of at least `nbytes` bytes at a multiple of 64, which an operator uses within one call of `run`.

        Launches that wait may use it, one after the other.
        """
        held = self._scratch.get(name)
        if held is None or held.room < nbytes:
            if held is not None:
                self._held.append(held.memory)  # launches that wait may use it
            held = self._scratch[name] = _Scratch(nbytes + nbytes // 4)
        return held.address

    @property
    def scratch_bytes(self) -> int:
        return sum(held.room for held in self._scratch.values())

    def note_host_call(self, instruction: Instruction) -> None:
        """Count a node that the host fallback runs, and trace it the first time."""
        self.host_calls += 1
        if self._tracer.enabled and instruction not in self._traced:
            self._traced.add(instruction)
            self._tracer.event("host_fallback", node=instruction.name, operator=instruction.title)

    def take_error(self) -> int:
        """The error word; clears it."""
        word = int(self._error[0])
        if word:
            self._error[0] = 0
        return word


class Recording:
    """Launches with their own argument blocks, and all memory that these point to."""

    def __init__(self, given: set[int]) -> None:
        self._given = given
        self.spoilt = False
        self.refreshes: list[Callable[[], bool]] = []
        """Bring what operators derived from the given arrays up to date; false when the launches do not fit them."""

    def gives(self, *arrays: npt.NDArray[Any] | None) -> bool:
        """Whether a replay fills these arrays itself, so that they may be read while launches wait."""
        return all(array is None or id(array) in self._given for array in arrays)

    def keep(
        self,
        queue: npt.NDArray[np.int64],
        blocks: npt.NDArray[np.int64],
        held: Sequence[npt.NDArray[Any]],
        scratch: Iterable[_Scratch],
    ) -> None:
        self._blocks, self._queue = blocks.copy(), queue.copy()
        self._queue[:, 1] = self._blocks.ctypes.data + _BLOCK_BYTES * np.arange(len(queue))
        self._kept = (*held, *(part.memory for part in scratch))
        self.address, self.count = self._queue.ctypes.data, len(queue)


class _Scratch:
    """:param room: bytes at a multiple of 64."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.memory = np.empty(room + 64, np.uint8)
        address = self.memory.ctypes.data
        self.address: int = address + -address % 64


# numpy's array object holds the pointer to its items right behind the head that every object has.
_BEHIND_HEAD = object.__basicsize__
_pointer_at = ctypes.c_ssize_t.from_address


def address_of(array: npt.NDArray[Any]) -> int:
    """Address of an array's first item. A step asks hundreds of times, and `array.ctypes.data` takes a microsecond."""
    return _pointer_at(id(array) + _BEHIND_HEAD).value
