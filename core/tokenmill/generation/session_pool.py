"""Sessions of one model, lent to one generation at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tokenmill.assembly import Assembly
from tokenmill.errors import SessionClosedError
from tokenmill.session import Session

#: Sessions kept open while nobody uses them: each holds a cache.
_IDLE = 2


class SessionPool:
    """Opens sessions as they are needed. The assembly is closed with the last session after `close()`."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly
        self._idle: list[Session] = []
        self._lent = 0
        self._closed = False
        self._turn = threading.Lock()

    def take(self) -> Session:
        """A session for the caller alone, with whatever it held last; to be given back.

        :raises SessionClosedError: the model was closed.
        """
        with self._turn:
            self.check_open()
            self._lent += 1
            if self._idle:
                return self._idle.pop()
        try:
            return self._assembly.session()
        except BaseException:
            self._given_back(None)
            raise

    def give_back(self, session: Session) -> None:
        self._given_back(session)

    @contextmanager
    def lend(self) -> Iterator[Session]:
        session = self.take()
        try:
            yield session
        finally:
            self.give_back(session)

    def check_open(self) -> None:
        """:raises SessionClosedError: the model was closed."""
        if self._closed:
            raise SessionClosedError("this model was closed", remedy="load it again")

    def close(self) -> None:
        """Close what is idle now and what is lent when it comes back. Closing twice is harmless."""
        with self._turn:
            if self._closed:
                return
            self._closed = True
            for session in self._idle:
                session.close()
            self._idle.clear()
            if not self._lent:
                self._assembly.close()

    def _given_back(self, session: Session | None) -> None:
        with self._turn:
            self._lent -= 1
            if session is not None and not self._closed and len(self._idle) < _IDLE:
                self._idle.append(session)
            elif session is not None:
                session.close()
            if self._closed and not self._lent:
                self._assembly.close()
