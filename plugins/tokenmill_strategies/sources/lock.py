"""One process at a time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _taken(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _taken(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextmanager
def alone(file: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a lock that ends with the process, however it ends.

    :param file: the lock; it is left behind, since removing it would let a third process in beside the second.
    :param waiting: called once when another one holds it.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _taken(descriptor):
            waiting()
            while not _taken(descriptor):
                time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)
