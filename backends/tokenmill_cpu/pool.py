"""The decode pool: one per process, threads that run the parts of a launch.

A launch is published as a ticket, from which every awake thread, the caller's included, takes parts until none is left. The
caller never waits for a thread to wake up, only for parts that have been begun; so a parked or preempted thread costs its
help and nothing else. Idle threads spin for a moment, because the next launch usually follows at once, and then park.

Parts are disjoint and numbered by the launch: which thread runs one changes nothing in the result.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections import deque
from functools import cache
from typing import Any

import numpy as np
from numba import njit

from tokenmill_cpu.atomics import add_word, call_kernel, exchange_if, load_word, pause, store_word
from tokenmill_cpu.kernel_cache import compiling
from tokenmill_cpu.launch import FLAGS, device

# Words of the control block, each on a cache line of its own. The ticket is generation << 32 | parts << 16 | next part.
_TICKET, _FINISHED, _KERNEL, _ARGS, _STOP = 0, 64, 128, 136, 192
_CONTROL_WORDS = 32

_word_at = ctypes.c_int64.from_address

#: Turns of the idle loop before a thread parks; a turn takes 10 to 50 ns, so about half a millisecond.
IDLE_TURNS = 20_000
#: Turns that a caller waits for the last parts before it gives its core away.
WAIT_TURNS = 2_000


@device
def _take_parts(control):
    while True:
        ticket = load_word(control + _TICKET)
        part, parts = ticket & 0xFFFF, (ticket >> 16) & 0xFFFF
        if part >= parts:
            return
        if exchange_if(control + _TICKET, ticket, ticket + 1):
            call_kernel(load_word(control + _KERNEL), load_word(control + _ARGS), part, parts)
            add_word(control + _FINISHED, 1)


@device
def _all_finished(control, parts, turns):
    """Whether all parts have finished within so many turns."""
    for _ in range(turns):
        if load_word(control + _FINISHED) == parts:
            return True
        pause()
    return load_word(control + _FINISHED) == parts


@device
def _publish(control, kernel, args, parts):
    store_word(control + _KERNEL, kernel)
    store_word(control + _ARGS, args)
    store_word(control + _FINISHED, 0)
    generation = (load_word(control + _TICKET) >> 32) + 1
    store_word(control + _TICKET, ((generation & 0x7FFFFFFF) << 32) | (parts << 16))


def _run(control: int, queue: int, start: int, count: int, turns: int) -> int:
    """Run launches from `start` on; gives the one whose last parts take long, or `count`."""
    for index in range(start, count):
        entry = queue + 24 * index
        kernel, args, parts = load_word(entry), load_word(entry + 8), load_word(entry + 16)
        if parts == 1:
            call_kernel(kernel, args, 0, 1)
        else:
            _publish(control, kernel, args, parts)
            _take_parts(control)
            if not _all_finished(control, parts, turns):
                return index
    return count


def _run_alone(queue: int, count: int) -> None:
    for index in range(count):
        entry = queue + 24 * index
        parts = load_word(entry + 16)
        for part in range(parts):
            call_kernel(load_word(entry), load_word(entry + 8), part, parts)


def _wait(control: int, parts: int, turns: int) -> bool:
    return _all_finished(control, parts, turns)


def _serve(control: int, turns: int) -> None:
    """Take parts until there was nothing to do for so many turns."""
    idle = 0
    while idle < turns and load_word(control + _STOP) == 0:
        ticket = load_word(control + _TICKET)
        if ticket & 0xFFFF < (ticket >> 16) & 0xFFFF:
            _take_parts(control)
            idle = 0
        else:
            pause()
            idle += 1


class _Native:
    """The compiled half of the pool. Only functions that close over nothing come from numba's cache."""

    def __init__(self) -> None:
        with compiling() as cached:
            options: dict[str, Any] = {"nogil": True, "cache": cached, **FLAGS}
            self.run = njit("int64(int64, int64, int64, int64, int64)", **options)(_run)
            self.run_alone = njit("void(int64, int64)", **options)(_run_alone)
            self.wait = njit("boolean(int64, int64, int64)", **options)(_wait)
            self.serve = njit("void(int64, int64)", **options)(_serve)


@cache
def _native() -> _Native:
    return _Native()


class DecodePool:
    """Threads for the parts of launches. Use `decode_pool()`: two pools would fight for the same cores.

    Callers do not wait for each other: whoever finds the pool busy runs all parts alone.
    """

    def __init__(self) -> None:
        self._native = _native()
        self._control = np.zeros(_CONTROL_WORDS + 8, np.int64)
        address = self._control.ctypes.data
        self._address = address + -address % 64
        self._turn = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._parked: deque[threading.Semaphore] = deque()
        self._stopping = False

    @property
    def threads(self) -> int:
        """Threads that can take parts, the caller's included."""
        return len(self._threads) + 1

    def reserve(self, threads: int) -> None:
        """Have at least so many threads, the caller's included."""
        with self._turn:
            for index in range(len(self._threads) + 1, threads):
                thread = threading.Thread(target=self._serve, name=f"tokenmill-decode-{index}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def run(self, queue: int, count: int) -> None:
        """Run launches one behind the other; returns when all have finished. Releases the GIL.

        :param queue: address of three words for each: the kernel's address, the argument block's and the number of parts.
        """
        if not self._threads or not self._turn.acquire(blocking=False):
            self._native.run_alone(queue, count)
            return
        try:
            while self._parked:
                self._parked.popleft().release()
            done = self._native.run(self._address, queue, 0, count, WAIT_TURNS)
            while done < count:
                self._finish(_word_at(queue + 24 * done + 16).value)
                done = self._native.run(self._address, queue, done + 1, count, WAIT_TURNS)
        finally:
            self._turn.release()

    def _finish(self, parts: int) -> None:
        """Wait for parts on threads that lost their core. An interrupt is kept until memory is no longer written."""
        interrupt: BaseException | None = None
        while not self._native.wait(self._address, parts, WAIT_TURNS):
            try:
                time.sleep(0)
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _serve(self) -> None:
        wake = threading.Semaphore(0)
        while not self._stopping:
            self._native.serve(self._address, IDLE_TURNS)
            self._parked.append(wake)
            wake.acquire()

    def stop(self) -> None:
        """Let every thread end."""
        self._stopping = True
        self._control[(self._address + _STOP - self._control.ctypes.data) // 8] = 1
        for thread in self._threads:
            while thread.is_alive():
                while self._parked:
                    self._parked.popleft().release()
                thread.join(0.001)


_pool: DecodePool | None = None
_pool_turn = threading.Lock()


def decode_pool() -> DecodePool:
    """The pool of this process."""
    global _pool
    with _pool_turn:
        if _pool is None:
            _pool = DecodePool()
        return _pool


def _forget_pool() -> None:
    """A forked child has none of its parent's threads: it starts with a pool of its own."""
    global _pool, _pool_turn
    _pool, _pool_turn = None, threading.Lock()


@atexit.register
def _stop_pool() -> None:
    if _pool is not None:
        _pool.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
