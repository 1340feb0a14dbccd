"""What operators have at hand during a run: launches, bound storage, scratch memory. One per context."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenmill.model.program import Instruction
from tokenmill.trace import NO_TRACE, Tracer

from tokenmill_cpu.binding import PortBinding
from tokenmill_cpu.launch import Kernel
from tokenmill_cpu.pool import DecodePool

_BLOCK_BYTES = 512

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
        self._block = np.zeros(_BLOCK_BYTES // 8, np.int64)
        self._block_bytes = self._block.data.cast("B")
        self._block_address = self._block.ctypes.data
        self._scratch: dict[str, _Scratch] = {}

    def launch(self, kernel: Kernel, parts: int, *words: Any) -> None:
        """Run a kernel now, split into `parts`; returns when all have finished.

        :param words: of its argument block, behind the error word.
        """
        kernel.pack_into(self._block_bytes, 0, self._error_address, *words)
        self._pool.launch(kernel.address, self._block_address, parts)

    def parts(self, items: int, pieces: int) -> int:
        """How many parts a launch on so many items is split into, of which `pieces` can be told apart."""
        return 1 if items < _SMALL else min(self.threads, pieces)

    def scratch(self, name: str, nbytes: int) -> int:
        """Address of at least `nbytes` bytes at a multiple of 64, which an operator uses within one call of `run`."""
        held = self._scratch.get(name)
        if held is None or held.room < nbytes:
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


class _Scratch:
    """:param room: bytes at a multiple of 64."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._memory = np.empty(room + 64, np.uint8)
        address = self._memory.ctypes.data
        self.address: int = address + -address % 64


# numpy's array object holds the pointer to its items right behind the head that every object has.
_BEHIND_HEAD = object.__basicsize__
_pointer_at = ctypes.c_ssize_t.from_address


def address_of(array: npt.NDArray[Any]) -> int:
    """Address of an array's first item. A step asks hundreds of times, and `array.ctypes.data` takes a microsecond."""
    return _pointer_at(id(array) + _BEHIND_HEAD).value
