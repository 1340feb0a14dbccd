"""A compiled model as a generator of text: settings, tokenizer and template brought to the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cached_property, partial
from typing import Any

from attrs import evolve

from tokenmill.assembly import Assembly
from tokenmill.contracts.processing import GenerationSettings
from tokenmill.errors import GenerationError, TemplateError
from tokenmill.generation.cancelling import Cancel, NeverCancelled
from tokenmill.generation.chat_template import ChatTemplate, Message, find_chat_template
from tokenmill.generation.choosing import make_chooser
from tokenmill.generation.prompt import checked_prompt
from tokenmill.generation.streaming import Pieces, stream_pieces
from tokenmill.generation.text_stream import TextStream
from tokenmill.generation.token_loop import Meter, Run
from tokenmill.generation.tokenizer import TOKENIZER, Tokenizer, read_tokenizer
from tokenmill.session import Session

#: How a session comes to hold a prefix of the prompt; returns its length.
Begin = Callable[[Session, Sequence[int]], int]


class Generator:
    """What every generation of a model has in common. Shared by threads; each generation has a session of its own."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """:raises TokenizerError: none beside the model, or one that cannot be read."""
        return read_tokenizer(self._assembly.decoder.directory, self._assembly.config.model.tokenizer)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """None for a model without one. :raises TemplateError: one that is malformed."""
        return find_chat_template(self._assembly.decoder.directory, self._assembly.config.model.chat_template)

    def settings(self, given: Mapping[str, Any]) -> GenerationSettings:
        """The configured settings with a call's own over them.

        :raises ConfigError: unknown name, wrong type or impossible value.
        """
        config = self._assembly.config
        return config.overridden({"generation": dict(given)}).generation if given else config.generation

    def encode(self, prompt: str | Sequence[int]) -> Sequence[int]:
        """Ids of a prompt; token ids are taken as they are.

        :raises GenerationError: an empty text, or what is neither text nor a sequence.
        """
        if isinstance(prompt, (bytes, bytearray)) or not hasattr(prompt, "__len__"):
            raise GenerationError(
                f"a prompt cannot be a {type(prompt).__name__}",
                why="a model continues a text or a list of token ids",
                remedy="decode bytes, and put a single id into a list",
            )
        if not isinstance(prompt, str):
            return prompt
        if not prompt:
            raise GenerationError("the prompt is empty", remedy="give a text or token ids")
        return self.tokenizer.encode(prompt)

    def encode_conversation(self, messages: Sequence[Message], values: Mapping[str, Any] | None = None) -> list[int]:
        """Ids of a conversation, as the chat template writes it, up to where the reply begins.

        :param values: further variables of the template.
        :raises TemplateError: the model has no template, or it refuses the conversation.
        """
        if self.chat_template is None:
            raise TemplateError(
                "the model has no chat template",
                why="neither chat_template.jinja nor tokenizer_config.json has one",
                remedy="set model.chat_template to a file, or continue plain text with generate",
            )
        text = self.chat_template.render(messages, self._special_tokens, **(values or {}))
        # The template has written the special tokens.
        return self.tokenizer.encode(text, special=False)

    def pieces(
        self,
        session: Session,
        prompt: Sequence[int],
        settings: GenerationSettings,
        begin: Begin,
        *,
        context: Sequence[int] = (),
        cancel: Cancel | None = None,
    ) -> Pieces:
        """Generate on a session.

        :param begin: `start_over` or `keep_common_prefix`.
        :param context: tokens that the text continues.
        :raises GenerationError: an empty prompt, or settings that cannot be used; nothing has changed.
        :raises StepError: ids out of the vocabulary; nothing has changed.
        :raises CapacityError: a prompt that does not fit; nothing has changed.
        """
        meter = Meter()
        capacity = session.max_context or self._assembly.capacity
        ids = checked_prompt(prompt, session, capacity)
        eos = frozenset() if settings.ignore_eos else frozenset(self._end_tokens)
        stops = tuple(dict.fromkeys((*settings.stop_token_ids, *sorted(eos))))
        text = TextStream(self._tokenizer_if_any(), settings, context)
        chooser = partial(make_chooser, self._assembly.registry, evolve(settings, stop_token_ids=stops))  # type: ignore[arg-type]
        if session.vocab_size is not None:
            chooser(session.vocab_size)  # settings that do not fit are refused before the session moves
        run = Run(
            prompt=ids,
            settings=settings,
            eos=eos,
            capacity=capacity,
            chunk=max(1, self._assembly.executable.preferred_rows),
            chooser=chooser,
            cancel=cancel or NeverCancelled(),
        )
        begin(session, ids)
        with closing(stream_pieces(session, run, meter, text)) as pieces:
            yield from pieces

    def _tokenizer_if_any(self) -> Tokenizer | None:
        """Token ids need no tokenizer. One that is there and broken is an error all the same."""
        directory, chosen = self._assembly.decoder.directory, self._assembly.config.model.tokenizer
        return self.tokenizer if chosen or (directory and (directory / TOKENIZER).exists()) else None

    @property
    def _end_tokens(self) -> tuple[int, ...]:
        """The model's end tokens; where its files name none, the tokenizer's."""
        stated = self._assembly.decoder.metadata.eos_token_ids
        if stated:
            return stated
        tokenizer = self._tokenizer_if_any()
        number = tokenizer.number(tokenizer.special_tokens.get("eos_token", "")) if tokenizer else None
        return () if number is None else (number,)

    @property
    def _special_tokens(self) -> dict[str, str]:
        """For the template: those of the tokenizer's configuration, else those whose ids the model's files state."""
        metadata = self._assembly.decoder.metadata
        stated = {"bos_token": metadata.bos_token_id, "eos_token": next(iter(metadata.eos_token_ids), None)}
        known = {role: text for role, id_ in stated.items() if id_ is not None and (text := self.tokenizer.token(id_))}
        return {**known, **self.tokenizer.special_tokens}
