"""Where a model's chat template runs: jinja2's sandbox, with bounds on what a template may spend.

A template comes with a model and is no more trusted than it. It reaches no attribute that leads into Python (jinja2's
immutable sandbox); steps and text have limits, so that a runaway one ends with an error.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

#: Turns of loops, calls and filters in one rendering. Real templates take some tens per message.
MAX_STEPS = 1_000_000
#: Characters of any one text, and items of any one list: far above any context.
MAX_SIZE = 16_000_000
MAX_SECONDS = 10
#: Work on this many characters or items counts as a step.
_SIZE_PER_STEP = 64

_LONG_WIDTH = re.compile(r"\d{6,}")


class TemplateRefusal(TemplateRuntimeError):
    """The template itself refuses the conversation, by `raise_exception`."""


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """An environment for one template, rendered by one thread at a time. `restart()` before each rendering."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationBlock],
        )
        self.restart()
        self.filters = {name: self._bounded_filter(function) for name, function in self.filters.items()}
        self.filters.update(tojson=_tojson, _counted=self._counted, _sized=self._sized)
        self.globals.pop("lipsum", None)
        self.globals.update(raise_exception=_refuse, strftime_now=_now)

    def restart(self) -> None:
        self._steps, self._deadline = 0, time.monotonic() + MAX_SECONDS

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Every loop counts its turns, and every text that grows has its size looked at."""
        template = super()._parse(source, name, filename)
        _replace(template, nodes.Concat, lambda joined: _through("_sized", joined, joined.lineno))
        for block in template.find_all(nodes.AssignBlock):
            block.filter = _through("_sized", block.filter, block.lineno)
        for loop in template.find_all(nodes.For):
            loop.iter = _through("_counted", loop.iter, loop.lineno)
        return template.set_environment(self)  # type: ignore[return-value]

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        """jinja2 would go on with an undefined value, which writes nothing."""
        raise SecurityError(f"it reaches for '{attribute}' of a {type(obj).__name__}")

    def call(self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        self._step()
        _check_numbers((*args, *kwargs.values()))
        if isinstance(__obj, LoopContext) and args:  # a recursive loop's next level
            args = (self._counted(args[0]), *args[1:])
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps `format`
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _check_text_method(owner, getattr(method, "__name__", ""), args)
        return self._sized(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator in ("*", "**"):
            _check_product(operator, left, right)
        elif operator == "%" and isinstance(left, str):
            _check_widths(left)
            _check_numbers(right if isinstance(right, tuple) else (right,))
        return self._sized(super().call_binop(context, operator, left, right))

    def _step(self, count: int = 1) -> None:
        self._steps += count
        if self._steps > MAX_STEPS:
            raise SecurityError(f"it takes more than {MAX_STEPS:,} steps")
        if time.monotonic() > self._deadline:
            raise SecurityError(f"it takes more than {MAX_SECONDS} seconds")

    def _counted(self, items: Iterable[Any]) -> Iterable[Any]:
        # A list stays one where that is possible: loops ask for its length.
        if isinstance(items, (list, tuple, range, dict, str)):
            self._step(len(items))
            return items
        return self._counting(items)

    def _counting(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._step()
            yield item

    def _sized(self, value: Any) -> Any:
        if isinstance(value, (str, list, tuple)):
            _check_size(len(value))
            self._step(len(value) // _SIZE_PER_STEP)
        return value

    def _bounded_filter(self, function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__

        @wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            self._step()
            _check_numbers((*args, *kwargs.values()))
            if name == "do_format":
                _check_widths(str(args[0]))
            elif name == "do_replace":
                _check_replacement(str(args[1]), args[2:])
            elif name == "sync_do_join" and isinstance(args[1], (list, tuple)):
                _check_text_method(str((*args[2:], "")[0]), "join", args[1:])
            return self._sized(function(*args, **kwargs))

        return bounded


class GenerationBlock(Extension):
    """`{% generation %}` marks what a model has said, for training. Here it is its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _through(name: str, value: Any, line: int) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=line)


def _replace(node: nodes.Node, kind: type[nodes.Node], by: Callable[[Any], nodes.Node]) -> None:
    """Replace every node of a kind below this one."""
    for name, value in list(node.iter_fields()):
        children = value if isinstance(value, list) else [value]
        for index, child in enumerate(children):
            if isinstance(child, nodes.Node):
                _replace(child, kind, by)
                if isinstance(child, kind):
                    children[index] = by(child)
        if not isinstance(value, list):
            setattr(node, name, children[0])


def _check_size(size: int) -> None:
    if size > MAX_SIZE:
        raise SecurityError(f"it makes a text or list of more than {MAX_SIZE:,} items")


def _check_numbers(values: Iterable[Any]) -> None:
    """Widths, counts and indents are small."""
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_SIZE:
            raise SecurityError(f"it passes a number above {MAX_SIZE:,}")


def _check_product(operator: str, left: Any, right: Any) -> None:
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, (str, bytes, list, tuple)) and isinstance(times, int):
            _check_size(len(sequence) * times)
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > 4096:
            raise SecurityError("it computes a number of more than 4,096 bits")


def _check_text_method(text: str, name: str, arguments: tuple[Any, ...]) -> None:
    if name == "format":
        _check_widths(text)
    elif name == "replace":
        _check_replacement(text, arguments)
    elif name == "join" and arguments and isinstance(arguments[0], (list, tuple)):
        _check_size(sum(len(item) + len(text) for item in arguments[0] if isinstance(item, str)))


def _check_widths(text: str) -> None:
    if _LONG_WIDTH.search(text):
        raise SecurityError("it formats to a width of 6 digits or more")


def _check_replacement(text: str, arguments: tuple[Any, ...]) -> None:
    if len(arguments) >= 2:
        old, new = str(arguments[0]), str(arguments[1])
        _check_size(len(text) + (text.count(old) if old else len(text) + 1) * len(new))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as text: unlike jinja2's own filter, without escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise TemplateRefusal(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
