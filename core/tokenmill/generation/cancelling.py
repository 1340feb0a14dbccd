"""Stop a generation from outside. What cancels is a `threading.Event`: any thread may set it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol


class Cancel(Protocol):
    """Asked before each step. `threading.Event` is one."""

    def is_set(self) -> bool: ...


class NeverCancelled:
    """When nobody can cancel."""

    def is_set(self) -> bool:
        return False


@contextmanager
def cancelled_by_interrupt() -> Iterator[threading.Event]:
    """Within the block Ctrl-C sets the event, so that a generation ends with what it has; a second one interrupts.

    Outside the main thread, where Python has no signals, nothing sets it.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.getsignal(signal.SIGINT)

    def interrupted(number: int, frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.default_int_handler)
