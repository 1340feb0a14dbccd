"""Raw values that remember where they came from, and how they become the fields of an attrs class.

Every error names the place (file, environment variable, keyword), the key, the value and what is allowed.
"""

from __future__ import annotations

import collections.abc
import difflib
import numbers
import sys
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import attrs
import cattrs
from attrs import frozen

from tokenmill.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

OriginKind = Literal["call", "environment", "file", "model", "default"]


@frozen
class Origin:
    """Where a value came from. `place` names it: a variable, a file, `keyword`, `command line`."""

    kind: OriginKind
    place: str = ""

    def __str__(self) -> str:
        if self.kind == "environment":
            return f"environment variable {self.place}"
        return self.place or self.kind


DEFAULT = Origin("default", "default")


@frozen
class Setting:
    """A raw value. A textual one (environment, command line) is parsed as its field's type asks."""

    value: Any
    origin: Origin
    textual: bool = False


def structure(cls: type[T], settings: Mapping[str, Any], section: str) -> T:
    """Make an attrs class of raw values; a missing one takes the field's default.

    :param settings: by field name: a `Setting`, or a plain value, which counts as a keyword.
    :param section: dotted prefix of the keys, for messages.
    :raises ConfigError: unknown key, wrong type, impossible value, missing required key.
    """
    known = {attribute.name: attribute for attribute in attrs.fields(attrs.resolve_types(cls)) if attribute.init}  # type: ignore[arg-type,type-var]
    values: dict[str, Any] = {}
    for key, raw in settings.items():
        setting = raw if isinstance(raw, Setting) else Setting(raw, Origin("call", "keyword"))
        attribute = known.get(key)
        if attribute is None:
            raise unknown_key(f"{section}.{key}", setting.origin, [f"{section}.{name}" for name in known])
        values[attribute.alias or key] = _field_value(attribute, setting, f"{section}.{key}")
    missing = [key for key, attribute in known.items() if attribute.default is attrs.NOTHING and key not in settings]
    if missing:
        raise ConfigError(f"{section} lacks {', '.join(missing)}", remedy=f"set {section}.{missing[0]}")
    try:
        return cls(**values)
    except (ValueError, TypeError) as error:  # a rule that concerns several fields
        given = ", ".join(f"{key} = {value!r}" for key, value in values.items())
        raise ConfigError(f"{section} cannot be used with {given}", why=_first(error)) from error


def unknown_key(key: str, origin: Origin, known: list[str]) -> ConfigError:
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return ConfigError(f"{origin}: there is no key {key}", remedy=f"{hint}allowed: {', '.join(known) or 'nothing'}")


def _field_value(attribute: attrs.Attribute[Any], setting: Setting, key: str) -> Any:
    """Structure, convert and validate one field, so that an error can name its own origin."""
    what = f"{setting.origin}: {key} = {setting.value!r} cannot be used"
    kind = attribute.type if attribute.type is not None else Any
    try:
        value = _parsed(kind, setting.value) if setting.textual else setting.value
        value = _STRICT.structure(_prepared(kind, value), kind)
    except (Exception, cattrs.BaseValidationError) as error:
        raise ConfigError(what, why=f"expected {describe(kind)}") from error
    try:
        if attribute.converter is not None:
            value = attribute.converter(value)  # type: ignore[operator]
        if attribute.validator is not None:
            attribute.validator(None, attribute, value)
    except (ValueError, TypeError) as error:
        raise ConfigError(what, why=_first(error)) from error
    return value


def _first(error: Exception) -> str:
    """attrs appends the attribute and the value to its messages' arguments; the text comes first."""
    return str(error.args[0]) if error.args else type(error).__name__


def describe(kind: Any) -> str:
    """What a type allows, in words."""
    plain: dict[Any, str] = {int: "an integer", float: "a number", bool: "true or false", str: "a text", Path: "a path"}
    if kind in plain:
        return plain[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if _is_union(kind):
        rest = [describe(item) for item in arguments if item is not type(None)]
        return " or ".join([*rest, "none"] if type(None) in arguments else rest)
    if isinstance(origin, type) and issubclass(origin, collections.abc.Mapping):
        return f"a table of {describe(arguments[-1])}" if arguments else "a table"
    if origin in _LISTS:
        return f"a list, each {describe(arguments[0])}" if arguments else "a list"
    if attrs.has(kind):
        return f"a table with {', '.join(field.name for field in attrs.fields(kind))}"
    return "any value" if kind is Any else getattr(kind, "__name__", str(kind))


_LISTS = (tuple, list, collections.abc.Sequence, set, frozenset)


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (typing.Union, types.UnionType)


def _without_none(kind: Any) -> Any:
    """`X` of `X | None`; anything else as it is."""
    if _is_union(kind):
        rest = [item for item in get_args(kind) if item is not type(None)]
        if len(rest) == 1:
            return rest[0]
    return kind


# --- text ------------------------------------------------------------------------------------------------------------

_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _parsed(kind: Any, text: str) -> Any:
    """The value that a text stands for, given the type that is wanted."""
    if _is_union(kind) and type(None) in get_args(kind) and text.strip().lower() == "none":
        return None
    kind = _without_none(kind)
    if kind is str or kind is Path or (get_origin(kind) is Literal and all(isinstance(a, str) for a in get_args(kind))):
        return text
    if kind is bool:
        return _WORDS[text.strip().lower()]
    if kind in (int, float):
        return kind(text)
    if get_origin(kind) in _LISTS:
        if text.lstrip().startswith("["):
            return _toml_value(text)
        element = (get_args(kind) or (str,))[0]
        return [_parsed(element, item.strip()) for item in text.split(",") if item.strip()]
    try:
        return _toml_value(text)
    except tomllib.TOMLDecodeError:
        return text


def _toml_value(text: str) -> Any:
    return tomllib.loads(f"value = {text}")["value"]


# --- types -----------------------------------------------------------------------------------------------------------


def _prepared(kind: Any, value: Any) -> Any:
    """What the converter takes too literally: one text for a list of texts, and TOML's keys, which are always texts."""
    kind = _without_none(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in _LISTS and isinstance(value, (str, bytes, Mapping)):
        if isinstance(value, str) and arguments and arguments[0] is str:
            return [value]
        raise TypeError("not a list")
    if isinstance(origin, type) and issubclass(origin, collections.abc.Mapping):
        if not isinstance(value, Mapping):
            raise TypeError("not a table")
        if arguments and arguments[0] is int:
            return {int(key): item for key, item in value.items()}
    return value


def _strict_converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)

    def exactly(accepts: Callable[[Any], bool], make: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        def hook(value: Any, kind: Any) -> Any:
            if not accepts(value):
                raise TypeError(f"{value!r} is not {describe(kind)}")
            return make(value)

        return hook

    def whole(value: Any) -> bool:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)

    def real(value: Any) -> bool:
        return isinstance(value, numbers.Real) and not isinstance(value, bool)

    converter.register_structure_hook(int, exactly(whole, int))
    converter.register_structure_hook(float, exactly(real, float))
    converter.register_structure_hook(bool, exactly(lambda value: isinstance(value, bool), bool))
    converter.register_structure_hook(str, exactly(lambda value: isinstance(value, (str, Path)), str))
    return converter


_STRICT = _strict_converter()
