"""From a plugin object to its record: handshake, hook validation, and each hook called on its own, guarded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pluggy
from attrs import evolve

from tokenmill.hooks import specs
from tokenmill.hooks.attributes import PLUGIN_FAILURES, reason_of, short_traceback
from tokenmill.hooks.kinds import KIND_OF_HOOK, KINDS, Kind
from tokenmill.hooks.markers import API_VERSION, PROJECT
from tokenmill.hooks.records import Contribution, PluginRecord, Problem


def load_plugin(record: PluginRecord, load: Callable[[], Any]) -> PluginRecord:
    """Complete a record.

    :param load: returns the plugin object; it may fail in any way.
    """
    try:
        plugin = load()
        api = handshake(plugin)
        implementations = _implementations(plugin)
        strays = _unmarked(plugin)
    except _Refused as refusal:
        return record.failed(str(refusal))
    except pluggy.PluginValidationError as error:
        return record.failed(_validation_reason(error))
    except PLUGIN_FAILURES as error:
        return record.failed(reason_of(error), short_traceback(error))

    contributions: list[Contribution] = []
    problems = [
        Problem(name, "the function is not marked with @tokenmill.hooks.markers.hookimpl, so it is not called")
        for name in strays
    ]
    for kind in KINDS:
        for implementation in implementations.get(kind.hook, ()):
            descriptors, problem = _call(kind, implementation)
            problems += [problem] if problem else []
            contributions += [
                Contribution(kind, descriptor, record.name, record.distribution, record.builtin)
                for descriptor in descriptors
            ]
    hooks = tuple(kind.hook for kind in KINDS if kind.hook in implementations)
    if not hooks and not strays:
        problems.append(Problem("hooks", "it contributes nothing: no function is marked with hookimpl"))
    return evolve(record, api=api, hooks=hooks, contributions=tuple(contributions), problems=tuple(problems))


def handshake(plugin: Any) -> tuple[int, int]:
    """Read `TOKENMILL_API` and compare it with what this core offers."""
    offered = "{}.{}".format(*API_VERSION)
    version = getattr(plugin, "TOKENMILL_API", None)
    if version is None:
        raise _Refused(f"it declares no TOKENMILL_API; write TOKENMILL_API = {API_VERSION} in the plugin module")
    numbers = isinstance(version, tuple) and len(version) == 2 and all(type(number) is int for number in version)
    if not numbers:
        raise _Refused(f"TOKENMILL_API is {version!r}; it has to be a tuple of two integers, (major, minor)")
    major, minor = version
    if major != API_VERSION[0]:
        raise _Refused(
            f"it was written for plugin API {major}.{minor}; this tokenmill offers {offered}, and majors must agree"
        )
    if minor > API_VERSION[1]:
        raise _Refused(f"it needs plugin API {major}.{minor}; this tokenmill offers {offered}: upgrade tokenmill")
    return major, minor


class _Refused(Exception):
    """A plugin object that may not be registered."""


def _implementations(plugin: Any) -> dict[str, list[pluggy.HookImpl]]:
    """Hooks that a plugin implements, checked by pluggy. A manager of its own, so that no other plugin can be hurt."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(specs)
    manager.register(plugin)
    manager.check_pending()
    found: dict[str, list[pluggy.HookImpl]] = {}
    for caller in manager.get_hookcallers(plugin) or ():
        if caller.name in KIND_OF_HOOK:
            found[caller.name] = list(caller.get_hookimpls())
    return found


def _unmarked(plugin: Any) -> list[str]:
    """Functions with a hook's name but without the marker: pluggy would pass over them in silence."""
    marker = f"{PROJECT}_impl"
    return [
        name
        for name in KIND_OF_HOOK
        if callable(found := getattr(plugin, name, None)) and getattr(found, marker, None) is None
    ]


def _validation_reason(error: pluggy.PluginValidationError) -> str:
    text = " ".join(str(error).split())
    if "unknown hook" in text:
        name = text.split("unknown hook ")[1].split()[0].strip("'\"")
        return f"'{name}' is no hook of tokenmill; the hooks are {', '.join(KIND_OF_HOOK)}"
    return f"a hook is declared wrongly: {text.split('Plugin ')[-1]}"


def _call(kind: Kind, implementation: pluggy.HookImpl) -> tuple[list[Any], Problem | None]:
    if implementation.hookwrapper or implementation.wrapper:
        return [], Problem(kind.hook, "a wrapper has nothing to wrap: each implementation is called on its own")
    try:
        result = implementation.function()
        if not isinstance(result, (list, tuple)):
            return [], Problem(
                kind.hook, f"it returned {_kind_of(result)} instead of a list of {kind.descriptor.__name__}"
            )
        strangers = [item for item in result if not isinstance(item, kind.descriptor)]
        if strangers:
            found = ", ".join(_kind_of(item) for item in strangers)
            return [], Problem(kind.hook, f"its list holds {found}; expected {kind.descriptor.__name__}")
    except PLUGIN_FAILURES as error:
        return [], Problem(kind.hook, f"it raised {reason_of(error)}", short_traceback(error))
    return list(result), None


def _kind_of(value: object) -> str:
    return "None" if value is None else f"{'an' if type(value).__name__[0] in 'aeiou' else 'a'} {type(value).__name__}"
