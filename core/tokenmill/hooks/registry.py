"""Which plugins there are, what they contribute, and why something is missing."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from typing import Any, TypeVar

from attrs import evolve

from tokenmill.contracts.descriptors import Descriptor
from tokenmill.errors import PluginError
from tokenmill.hooks.conflicts import settle_contributions, settle_plugin_names
from tokenmill.hooks.kinds import KIND_OF_DESCRIPTOR
from tokenmill.hooks.loading import load_plugin
from tokenmill.hooks.markers import ENTRY_POINT_GROUP
from tokenmill.hooks.records import Contribution, PluginRecord

#: Plugins of this distribution are built in.
BUILTIN_DISTRIBUTION = "tokenmill"

D = TypeVar("D", bound=Descriptor)


class Registry:
    """Plugins and their descriptors. Holds no global state; `default_registry` keeps one for the process.

    :param disabled: names of plugins, or of distributions with all their plugins, that are listed but not loaded.
    """

    def __init__(self, disabled: Iterable[str] = ()) -> None:
        self.disabled = frozenset(disabled)
        self._loaded: list[PluginRecord] = []
        self._records: tuple[PluginRecord, ...] = ()

    @classmethod
    def discover(cls, disabled: Iterable[str] = ()) -> Registry:
        """Load every installed entry point of group `tokenmill.plugins`. Never fails: failures are in `records`."""
        registry = cls(disabled)
        points = sorted(metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda point: (point.name, point.value))
        registry._loaded = [registry._load(_record_of(point), point.load) for point in points]
        registry._settle()
        return registry

    def register(self, plugin: Any, name: str) -> PluginRecord:
        """Add a module or object, for tests and notebooks. A second one of that name replaces the first.

        :returns: its record; what is wrong with it is in there.
        """
        target = getattr(plugin, "__name__", type(plugin).__qualname__)
        record = PluginRecord(name=name, version=None, distribution=None, target=target, builtin=False)
        self._loaded = [old for old in self._loaded if old.distribution is not None or old.name != name]
        self._loaded.append(self._load(record, lambda: plugin))
        self._settle()
        return next(found for found in self.records if found.distribution is None and found.name == name)

    @property
    def records(self) -> tuple[PluginRecord, ...]:
        """Every plugin, by name; a disabled name that no plugin has is listed, too."""
        return self._records

    def contributions(self, kind: type[Descriptor]) -> tuple[Contribution, ...]:
        """Every contribution of a kind, conflicting ones included, in the order in which `auto` asks."""
        found = (item for record in self._records for item in record.contributions if item.kind.descriptor is kind)
        return tuple(sorted(found, key=lambda item: (-item.descriptor.priority, item.name, item.plugin)))

    def active(self, kind: type[D]) -> tuple[D, ...]:
        """Descriptors of a kind that can be chosen: higher priority first, equal ones by name."""
        return tuple(item.descriptor for item in self.contributions(kind) if not item.conflict)  # type: ignore[misc]

    def find(self, kind: type[D], name: str) -> D:
        """The descriptor of that name.

        :raises PluginError: with the reason: a conflict, a plugin that failed or is disabled, or close matches.
        """
        label = KIND_OF_DESCRIPTOR[kind].label
        named = [item for item in self.contributions(kind) if item.name == name]
        for item in named:
            if not item.conflict:
                return item.descriptor  # type: ignore[return-value]
        if named:
            raise PluginError(f"{label} '{name}' cannot be chosen", why=f"the name {named[0].conflict}")
        culprit = next((record for record in self._records if record.name == name and record.state != "active"), None)
        if culprit is not None:
            raise PluginError(f"{label} '{name}' is not available", why=f"{culprit.title} {_condition(culprit)}")
        raise PluginError(
            f"there is no {label} '{name}'",
            why=self._absence(),
            remedy=_suggestion(name, [descriptor.name for descriptor in self.active(kind)]),
        )

    def _absence(self) -> str:
        """Plugins and hooks that did not come up: the name may have been theirs."""
        lost = [f"{record.title} {_condition(record)}" for record in self._records if record.state != "active"]
        lost += [f"{record.title} lost {problem}" for record in self._records for problem in record.problems]
        return "; ".join(lost) and f"not loaded: {'; '.join(lost)}"

    def _load(self, record: PluginRecord, load: Callable[[], Any]) -> PluginRecord:
        if {record.name, record.distribution} & self.disabled:
            return evolve(record, state="disabled", reason="it is named in plugins.disabled")
        return load_plugin(record, load)

    def _settle(self) -> None:
        records = settle_contributions(settle_plugin_names(self._loaded))
        absent = self.disabled - {name for record in records for name in (record.name, record.distribution)}
        reason = "it is named in plugins.disabled, but no such plugin is installed"
        records += [PluginRecord(name, None, None, "", False, state="disabled", reason=reason) for name in absent]
        self._records = tuple(sorted(records, key=lambda record: (record.name, record.distribution or "")))


def default_registry(disabled: Iterable[str] = ()) -> Registry:
    """The registry of installed plugins, discovered once per process and set of disabled names."""
    return _discovered(frozenset(disabled))


@functools.cache
def _discovered(disabled: frozenset[str]) -> Registry:
    return Registry.discover(disabled)


def _record_of(point: metadata.EntryPoint) -> PluginRecord:
    distribution = point.dist
    name = distribution.name if distribution else None
    return PluginRecord(
        name=point.name,
        version=distribution.version if distribution else None,
        distribution=name,
        target=point.value,
        builtin=name == BUILTIN_DISTRIBUTION,
    )


def _condition(record: PluginRecord) -> str:
    return f"is disabled: {record.reason}" if record.state == "disabled" else f"failed: {record.reason}"


def _suggestion(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    if close:
        return f"did you mean {' or '.join(repr(match) for match in close)}?"
    return f"available: {', '.join(sorted(known)) or 'none'}"
