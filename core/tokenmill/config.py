"""The configuration: one schema, five layers, and for every value where it came from.

Precedence: call or command line > environment > file > the model's own metadata > default. An environment variable's
name follows from the place: `TOKENMILL__CACHE__MAX_LEN`, `TOKENMILL__BACKEND__OPTIONS__CPU__ISA`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
from attrs import field, frozen
from attrs.validators import ge, optional

from tokenmill.contracts.processing import GenerationSettings
from tokenmill.errors import ConfigError
from tokenmill.settings import DEFAULT, Origin, Setting, structure, tomllib, unknown_key

ENVIRONMENT_PREFIX = "TOKENMILL__"

#: Tables of plugins' own options: name of the plugin's contribution -> its options.
OptionTables = Mapping[str, Mapping[str, Any]]


@frozen(kw_only=True)
class ModelSection:
    """`[model]`

    :param ref: what to load: a directory, file, `pypi:` reference or alias.
    :param io: roles of the graph's ports, over what the model's own files say. Field names of `IoSpec`.
    :param tokenizer: a `tokenizer.json` to use instead of the model's own.
    :param chat_template: a template file to use instead of the model's own.
    :param options: of model sources, by name.
    """

    ref: str | None = None
    io: Mapping[str, Any] = field(factory=dict)
    tokenizer: str | None = None
    chat_template: str | None = None
    options: OptionTables = field(factory=dict)


@frozen(kw_only=True)
class BackendSection:
    """`[backend]`

    :param name: `auto` takes the first that accepts, by priority.
    :param threads: handed to a backend that has such an option; None leaves it to the backend.
    :param precision: of decoding, handed to a backend that has such an option.
    """

    name: str = "auto"
    threads: int | None = field(default=None, validator=optional(ge(1)))
    precision: str = "auto"
    options: OptionTables = field(factory=dict)


@frozen(kw_only=True)
class CacheSection:
    """`[cache]`

    :param strategy: `auto`, or the strategy that growing groups have to use.
    :param max_len: capacity in tokens; None is the smaller of the model's context and 4096.
    :param dtype: of cached values, handed to a strategy that has such an option; `auto` is the graph's own.
    """

    strategy: str = "auto"
    max_len: int | None = field(default=None, validator=optional(ge(1)))
    dtype: Literal["auto", "float32", "float16"] = "auto"
    options: OptionTables = field(factory=dict)


@frozen(kw_only=True)
class CaptureSection:
    """`[capture]`

    :param enabled: None leaves it to the policy.
    """

    policy: str = "auto"
    enabled: bool | None = None
    options: OptionTables = field(factory=dict)


@frozen(kw_only=True)
class SpeculativeSection:
    """`[speculative]`

    :param proposer: None decodes without speculation.
    :param width: draft tokens per verify step; None leaves it to the proposer.
    """

    proposer: str | None = None
    width: int | None = field(default=None, validator=optional(ge(1)))
    options: OptionTables = field(factory=dict)


@frozen(kw_only=True)
class TraceSection:
    """`[trace]`

    :param sinks: names of trace sinks that receive spans and events.
    """

    sinks: tuple[str, ...] = ()
    options: OptionTables = field(factory=dict)


@frozen(kw_only=True)
class PluginsSection:
    """`[plugins]`

    :param disabled: names of plugins or distributions that are listed but not loaded.
    """

    disabled: tuple[str, ...] = ()


SECTIONS: dict[str, type] = {
    "model": ModelSection,
    "backend": BackendSection,
    "cache": CacheSection,
    "capture": CaptureSection,
    "generation": GenerationSettings,
    "speculative": SpeculativeSection,
    "trace": TraceSection,
    "plugins": PluginsSection,
}

#: Fields that are tables, merged key by key over the layers, with the depth of their keys.
_TABLE_DEPTH = {"options": 2, "io": 1}

KeyPath = tuple[str, ...]
Layer = Mapping[KeyPath, Setting]


@frozen(kw_only=True)
class Config:
    """Every section with its values, and the layers they came from. Made by `load_config`."""

    model: ModelSection
    backend: BackendSection
    cache: CacheSection
    capture: CaptureSection
    generation: GenerationSettings
    speculative: SpeculativeSection
    trace: TraceSection
    plugins: PluginsSection
    layers: tuple[Layer, ...] = field(default=(), repr=False)
    """Strongest first: call, environment, file, model."""

    def setting(self, key: str) -> Setting | None:
        """The raw value that decided a dotted key, with its origin; None when the default stands."""
        path = tuple(key.split("."))
        return next((layer[path] for layer in self.layers if path in layer), None)

    def keys_set(self) -> list[str]:
        """Dotted keys that some layer sets, in alphabetical order."""
        return sorted({".".join(path) for layer in self.layers for path in layer})

    def value(self, key: str) -> Any:
        """The value of a dotted key."""
        found: Any = self
        for name in key.split("."):
            found = found[name] if isinstance(found, Mapping) else getattr(found, name)
        return found

    def origin(self, key: str) -> Origin:
        """Where the value of a dotted key came from."""
        found = self.setting(key)
        return found.origin if found else DEFAULT

    def options(self, section: str, name: str) -> dict[str, Setting]:
        """A contribution's own options, `[section.options.name]`, each with its origin.

        `-` and `_` are the same in names.
        """
        prefix = (section, "options", _folded(name))
        return {path[3]: setting for path, setting in _merged(self.layers).items() if path[:3] == prefix}

    def overridden(self, overrides: Mapping[str, Any], place: str = "keyword") -> Config:
        """A configuration with another call's values over this one's.

        :param overrides: nested tables, dotted keys, or both.
        """
        return _resolve((_keyword_layer(overrides, place), *self.layers))

    def with_model(self, settings: Mapping[str, Any], place: str) -> Config:
        """A configuration in which the model's own metadata stands between the file and the defaults.

        :param settings: nested tables or dotted keys.
        :param place: the file that says so.
        """
        layer = dict(_flattened(settings, Origin("model", place)))
        return _resolve((*self.layers, layer))


def load_config(
    file: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    place: str = "keyword",
) -> Config:
    """Read and check a configuration.

    :param file: a TOML file.
    :param env: environment; None is the process's own.
    :param overrides: the call's values: nested tables (`cache={"max_len": 512}`), dotted keys (`"cache.max_len"`), or
        `Setting`s, which keep their own origin.
    :param place: what messages call the overrides.
    :raises ConfigError: unknown key, wrong type or impossible value, with file, key, value and what is allowed.
    """
    layers = [
        _keyword_layer(overrides or {}, place),
        _environment_layer(os.environ if env is None else env),
        _file_layer(Path(file)) if file is not None else {},
    ]
    return _resolve(tuple(layers))


def command_line_setting(text: str) -> tuple[str, Setting]:
    """`cache.max_len=512` of a command line as an override of `load_config`."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"command line: '{text}' is no setting", remedy="write it as section.key=value")
    return key.strip(), Setting(value, Origin("call", "command line"), textual=True)


def _resolve(layers: tuple[Layer, ...]) -> Config:
    merged = _merged(layers)
    values: dict[str, Any] = {}
    for section, cls in SECTIONS.items():
        settings: dict[str, Any] = {
            path[1]: setting for path, setting in merged.items() if path[0] == section and len(path) == 2
        }
        tables = {name: _table(merged, (section, name)) for name in _TABLE_DEPTH if hasattr(attrs.fields(cls), name)}
        values[section] = structure(cls, {**settings, **tables}, section)
    return Config(**values, layers=layers)


def _merged(layers: tuple[Layer, ...]) -> dict[KeyPath, Setting]:
    merged: dict[KeyPath, Setting] = {}
    for layer in reversed(layers):
        merged.update(layer)
    return merged


def _table(merged: Layer, prefix: KeyPath) -> dict[str, Any]:
    """A nested table of raw values: what a plugin's options class makes of them is known when it is chosen."""
    table: dict[str, Any] = {}
    for path, setting in merged.items():
        if path[:2] == prefix and len(path) > 2:
            inner = table
            for name in path[2:-1]:
                inner = inner.setdefault(name, {})
            inner[path[-1]] = _plain(setting)
    return table


def _plain(setting: Setting) -> Any:
    if not setting.textual:
        return setting.value
    try:
        return tomllib.loads(f"value = {setting.value}")["value"]
    except tomllib.TOMLDecodeError:
        return setting.value


# --- layers ----------------------------------------------------------------------------------------------------------


def _keyword_layer(overrides: Mapping[str, Any], place: str) -> Layer:
    return dict(_flattened(overrides, Origin("call", place)))


def _file_layer(file: Path) -> Layer:
    origin = Origin("file", str(file))
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"configuration file {file} cannot be read", why=error.strerror or str(error)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {file} is not valid TOML", why=str(error)) from error
    return dict(_flattened(tables, origin))


def _environment_layer(env: Mapping[str, str]) -> Layer:
    layer: dict[KeyPath, Setting] = {}
    for name in sorted(env):
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        origin = Origin("environment", name)
        path = tuple(part.lower() for part in name[len(ENVIRONMENT_PREFIX) :].split("__"))
        layer.update(_leaves(path, Setting(env[name], origin, textual=True), origin))
    return layer


def _flattened(tables: Mapping[str, Any], origin: Origin) -> Iterator[tuple[KeyPath, Setting]]:
    """Values of nested tables with their paths; a key may be dotted."""
    for key, value in tables.items():
        yield from _leaves(tuple(str(key).split(".")), value, origin)


def _leaves(path: KeyPath, value: Any, origin: Origin) -> Iterator[tuple[KeyPath, Setting]]:
    depth = _depth(path, origin)
    if len(path) == depth:
        yield _folded_path(path), value if isinstance(value, Setting) else Setting(value, origin)
    elif len(path) > depth:
        raise unknown_key(".".join(path), origin, [".".join(path[:depth])])
    else:
        table = _plain(value) if isinstance(value, Setting) else value
        if not isinstance(table, Mapping):
            raise ConfigError(f"{origin}: {'.'.join(path)} = {table!r} cannot be used", why="expected a table")
        for key, inner in table.items():
            yield from _leaves((*path, *str(key).split(".")), inner, origin)


def _depth(path: KeyPath, origin: Origin) -> int:
    """How many names lead to a value at this place of the schema, once section and key are known to exist."""
    section = path[0]
    if section not in SECTIONS:
        raise unknown_key(section, origin, list(SECTIONS))
    if len(path) == 1:
        return 2
    known = [attribute.name for attribute in attrs.fields(SECTIONS[section])]
    if path[1] not in known:
        raise unknown_key(f"{section}.{path[1]}", origin, [f"{section}.{name}" for name in known])
    return 2 + _TABLE_DEPTH.get(path[1], 0)


def _folded_path(path: KeyPath) -> KeyPath:
    return (*path[:2], _folded(path[2]), path[3]) if len(path) == 4 else path


def _folded(name: str) -> str:
    """Environment variables cannot spell `-`."""
    return name.replace("-", "_").lower()
