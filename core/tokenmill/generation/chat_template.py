"""A conversation as the text that a model was trained on, by the model's own template."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenmill.errors import GenerationError, TemplateError
from tokenmill.generation.tokenizer import CONFIGURATION

TEMPLATE = "chat_template.jinja"

#: One message: `role`, `content`, and whatever else the template knows.
Message = Mapping[str, Any]


class ChatTemplate:
    """A compiled template. Threads take turns.

    :param source: jinja2.
    :param title: where it came from, for messages.
    :raises TemplateError: not valid jinja2.
    """

    def __init__(self, source: str, title: str = "the chat template") -> None:
        import jinja2

        from tokenmill.generation.template_sandbox import TemplateSandbox

        self.source, self.title = source, title
        self._turn = threading.Lock()
        self._sandbox = TemplateSandbox()
        try:
            self._template = self._sandbox.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            line = getattr(error, "lineno", None)
            raise TemplateError(
                f"{title} is malformed" + (f" in line {line}" if line else ""),
                why=_reason(error),
                remedy="correct it, or set model.chat_template",
            ) from error

    def render(
        self, messages: Sequence[Message], special_tokens: Mapping[str, str] | None = None, **values: Any
    ) -> str:
        """The prompt whose continuation is the next reply.

        :param messages: of the conversation, oldest first.
        :param special_tokens: texts of `bos_token` and others, which templates write themselves.
        :param values: further variables of the template, such as `enable_thinking` or `tools`.
        :raises GenerationError: no messages, or one without a role.
        :raises TemplateError: the template refuses the conversation, fails, or spends more than it may.
        """
        from jinja2.exceptions import SecurityError

        from tokenmill.generation.template_sandbox import MAX_SIZE, TemplateRefusal

        given = {"add_generation_prompt": True, "tools": None, **(special_tokens or {}), **values}
        given["messages"] = [dict(message) for message in check_messages(messages)]
        pieces: list[str] = []
        size = 0
        with self._turn:
            self._sandbox.restart()
            try:
                for piece in self._template.generate(given):
                    pieces.append(piece)
                    size += len(piece)
                    if size > MAX_SIZE:
                        raise SecurityError(f"it writes more than {MAX_SIZE:,} characters")
            except TemplateRefusal as error:
                raise TemplateError(f"{self.title} refuses the conversation", why=str(error)) from error
            except Exception as error:  # whatever the template's own code raises
                raise TemplateError(
                    f"{self.title} fails", why=_reason(error), remedy="correct it, or set model.chat_template"
                ) from error
        return "".join(pieces)


def check_messages(messages: Sequence[Message]) -> Sequence[Message]:
    """:raises GenerationError: no messages, or one that is no mapping with a role."""
    if not messages:
        raise GenerationError(
            "the conversation is empty", remedy='give messages such as {"role": "user", "content": "Hi"}'
        )
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise GenerationError(
                f"message {index} cannot be used",
                why="it is no mapping with a text as its role",
                remedy='write it as {"role": "user", "content": "Hi"}',
            )
    return messages


def find_chat_template(directory: Path | None, file: str | None = None) -> ChatTemplate | None:
    """A model's template: `chat_template.jinja`, else `chat_template` of `tokenizer_config.json`; None without one.

    :param file: to use instead.
    :raises TemplateError: no such file, or a template that is malformed.
    """
    if file is not None:
        return ChatTemplate(_text(Path(file).expanduser(), "correct model.chat_template"), f"'{file}'")
    if directory is None:
        return None
    if (directory / TEMPLATE).is_file():
        return ChatTemplate(_text(directory / TEMPLATE), f"'{directory / TEMPLATE}'")
    path = directory / CONFIGURATION
    if not path.is_file():
        return None
    try:
        configuration = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise TemplateError(f"'{path}' cannot be read", why=str(error), remedy="fetch the file again") from error
    found = configuration.get("chat_template") if isinstance(configuration, dict) else None
    source = _default(found)
    if found is not None and source is None:
        raise TemplateError(
            f"chat_template of '{path}' cannot be used", why="a text, or a list of named ones with a default, is needed"
        )
    return None if source is None else ChatTemplate(source, f"chat_template of '{path}'")


def _default(found: Any) -> str | None:
    """Of several named templates, the one for ordinary conversations."""
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default") or (next(iter(named.values())) if len(named) == 1 else None)
    return found if isinstance(found, str) else None


def _text(file: Path, remedy: str = "fetch the file again") -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError(f"'{file}' cannot be read", why=str(error), remedy=remedy) from error


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it calls itself without end"
    return " ".join(str(error).split()) or type(error).__name__
