"""A conversation that goes on: each turn feeds only what the session does not hold yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from types import TracebackType
from typing import Any

from tokenmill.generation.cancelling import Cancel
from tokenmill.generation.chat_template import Message, check_messages
from tokenmill.generation.generator import Generator
from tokenmill.generation.piece import Generation
from tokenmill.generation.prompt import keep_common_prefix
from tokenmill.generation.session_pool import SessionPool
from tokenmill.generation.streaming import Pieces, collect
from tokenmill.session import Session


class Chat:
    """Messages so far, with a session that keeps their common prefix. One thread at a time.

    Use it as a context manager, or call `close()`, to give its cache back.
    """

    def __init__(
        self,
        generator: Generator,
        pool: SessionPool,
        messages: Sequence[Message] = (),
        template_values: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """:param messages: to begin with, such as a system message.
        :param template_values: further variables of the chat template.
        :param settings: of every reply; a reply's own go over them.
        """
        self._generator, self._pool = generator, pool
        self._beginning = [dict(message) for message in (check_messages(messages) if messages else ())]
        self._messages = list(self._beginning)
        self._values = dict(template_values or {})
        self._settings = dict(settings or {})
        self._session: Session | None = pool.take()

    @property
    def messages(self) -> tuple[Message, ...]:
        """Everything said so far, oldest first."""
        return tuple(self._messages)

    def say(self, text: str, *, cancel: Cancel | None = None, **settings: Any) -> Generation:
        """Say something and wait for the reply. For errors see `stream`."""
        return collect(self.stream(text, cancel=cancel, **settings))

    def stream(self, text: str, *, cancel: Cancel | None = None, **settings: Any) -> Pieces:
        """Say something and take the reply as it comes.

        A reply that is cut short (cancelled, closed, failed) stays in the conversation as far as it came; when nothing
        came, the conversation is as before.

        :raises TemplateError: the template refuses the conversation.
        :raises CapacityError: the conversation has grown beyond the cache.
        """
        chosen = self._generator.settings({**self._settings, **settings})
        asked = [*self._messages, {"role": "user", "content": text}]
        prompt = self._generator.encode_conversation(asked, self._values)
        pieces = self._generator.pieces(self._open(), prompt, chosen, keep_common_prefix, cancel=cancel)
        return self._reply(asked, pieces)

    def _reply(self, asked: list[dict[str, Any]], pieces: Pieces) -> Pieces:
        said: list[str] = []
        try:
            with closing(pieces):
                for piece in pieces:
                    said.append(piece.text)
                    yield piece
        finally:
            if said:
                self._messages = [*asked, {"role": "assistant", "content": "".join(said)}]

    def reset(self) -> None:
        """Forget everything but the messages it began with. What they have in common with the next turn is kept."""
        self._messages = list(self._beginning)

    def close(self) -> None:
        """Closing twice is harmless."""
        if self._session is not None:
            self._pool.give_back(self._session)
            self._session = None

    def _open(self) -> Session:
        self._pool.check_open()
        if self._session is None:
            self._session = self._pool.take()
        return self._session

    def __enter__(self) -> Chat:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
