"""Make what descriptors name, ask the candidates, and keep the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from tokenmill.config import Config, load_config
from tokenmill.contracts.answers import Accepted, Answer, Declined
from tokenmill.contracts.backend import Backend, Executable
from tokenmill.contracts.cache import CacheGroup, CacheStrategy
from tokenmill.contracts.descriptors import (
    BackendDescriptor,
    CacheStrategyDescriptor,
    Descriptor,
    StepRouterDescriptor,
    TraceSinkDescriptor,
)
from tokenmill.contracts.routing import StepRouter
from tokenmill.decisions import Decision, answered, refusals
from tokenmill.errors import BackendUnavailableError, PluginError, TokenmillError
from tokenmill.hooks.attributes import PLUGIN_FAILURES, load_attribute, reason_of
from tokenmill.hooks.kinds import KIND_OF_DESCRIPTOR
from tokenmill.hooks.registry import Registry, default_registry
from tokenmill.host_fallback import LazyHostFallback
from tokenmill.settings import DEFAULT, Origin, Setting, structure, unknown_key
from tokenmill.trace import NO_TRACE, Tracer

#: General settings that go to a contribution whose own options have a field of that name.
HANDED_OVER = {"backend": ("threads", "precision"), "cache": ("dtype", "max_len")}


def select_backend(
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
    registry: Registry | None = None,
    *,
    config: Config | None = None,
) -> tuple[Backend, Decision]:
    """Choose a device.

    :param name: a backend's name or `auto`; None is what the configuration says.
    :param options: the backend's own options, over the configured ones. `auto` passes over backends without them.
    :param registry: None is the installed plugins.
    :param config: None is what the environment says.
    :raises PluginError: no backend of that name, with the reason.
    :raises BackendUnavailableError: none accepted; every reason is in the message.
    :raises ConfigError: options that the backend does not have or cannot use.
    """
    config = load_config() if config is None else config
    registry = default_registry(config.plugins.disabled) if registry is None else registry
    origin = config.origin("backend.name") if name is None else Origin("call", "keyword")
    name = config.backend.name if name is None else name
    automatic = name == "auto"
    candidates = registry.active(BackendDescriptor) if automatic else (registry.find(BackendDescriptor, name),)
    fallback = LazyHostFallback(registry)
    answers: list[tuple[str, Answer]] = []
    for descriptor in candidates:
        made: list[Backend] = []

        def ask(descriptor: BackendDescriptor = descriptor, made: list[Backend] = made) -> Answer:
            foreign = set(options or ()) - _option_names(descriptor)
            if automatic and foreign:
                return Declined(f"it has no option {', '.join(sorted(foreign))}")
            made.append(make(descriptor, options_of(descriptor, "backend", config, options), fallback))
            return made[0].probe()

        answer = answered(ask)
        answers.append((descriptor.name, answer))
        if answer:
            return made[0], Decision("backend", descriptor.name, tuple(answers), origin)
    raise BackendUnavailableError(
        "no backend accepts" if automatic else f"backend '{name}' cannot run here",
        why=refusals(answers) or "no backend plugin is active",
        remedy="`tokenmill plugins` lists what is installed"
        if automatic
        else 'backend.name = "auto" takes the first that can',
    )


def select_strategies(
    groups: Sequence[CacheGroup], executable: Executable, config: Config, registry: Registry
) -> tuple[tuple[tuple[CacheGroup, CacheStrategy], ...], tuple[Decision, ...]]:
    """Choose who keeps each group. A configured strategy is for growing groups; the others are asked by priority.

    :raises PluginError: a configured strategy that declines, or a group that nobody accepts.
    """
    chosen: list[tuple[CacheGroup, CacheStrategy]] = []
    decisions: list[Decision] = []
    made: dict[str, CacheStrategy] = {}
    for group in groups:
        named = config.cache.strategy if config.cache.strategy != "auto" and group.kind == "growing" else None
        candidates = (
            (registry.find(CacheStrategyDescriptor, named),) if named else registry.active(CacheStrategyDescriptor)
        )
        answers: list[tuple[str, Answer]] = []
        for descriptor in candidates:

            def ask(descriptor: CacheStrategyDescriptor = descriptor, group: CacheGroup = group) -> Answer:
                if descriptor.name not in made:
                    made[descriptor.name] = make(descriptor, options_of(descriptor, "cache", config))
                return made[descriptor.name].accepts(group, executable)

            answer = answered(ask)
            answers.append((descriptor.name, answer))
            if answer:
                chosen.append((group, made[descriptor.name]))
                origin = config.origin("cache.strategy") if named else DEFAULT
                decisions.append(Decision(f"cache of {group.name}", descriptor.name, tuple(answers), origin))
                break
        else:
            raise PluginError(
                f"no cache strategy keeps the {group.kind} group '{group.name}' of {len(group.ports)} ports"
                if not named
                else f"cache strategy '{named}' cannot keep the group '{group.name}'",
                why=refusals(answers) or "no cache strategy plugin is active",
                remedy='cache.strategy = "auto" takes the first that accepts' if named else "",
            )
    return tuple(chosen), tuple(decisions)


def make_routers(registry: Registry) -> tuple[tuple[StepRouter, ...], Decision]:
    """Every active router, in the order of asking. One that cannot be made is left out, with its reason."""
    routers: list[StepRouter] = []
    answers: list[tuple[str, Answer]] = []
    for descriptor in registry.active(StepRouterDescriptor):

        def ask(descriptor: StepRouterDescriptor = descriptor) -> Answer:
            routers.append(make(descriptor, options_of(descriptor, None, None)))
            return Accepted(descriptor.summary)

        answers.append((descriptor.name, answered(ask)))
    names = ", ".join(name for name, answer in answers if answer)
    return tuple(routers), Decision("step routers", names or "none", tuple(answers))


def make_tracer(config: Config, registry: Registry) -> Tracer:
    """A tracer with the configured sinks.

    :raises PluginError: a sink that is unknown or cannot be made.
    """
    sinks = []
    for name in config.trace.sinks:
        descriptor = registry.find(TraceSinkDescriptor, name)
        sinks.append(make(descriptor, options_of(descriptor, "trace", config)))
    return Tracer(*sinks) if sinks else NO_TRACE


def check_option_tables(config: Config, registry: Registry, section: str, *kinds: type[Descriptor]) -> None:
    """Refuse `[section.options.NAME]` for a name that nothing installed has.

    :raises ConfigError: for a misspelt name; the table of a plugin that failed or is disabled is passed over.
    """
    known = {item.name.replace("-", "_") for kind in kinds for item in registry.contributions(kind)}
    known |= {record.name.replace("-", "_") for record in registry.records if record.state != "active"}
    for layer in config.layers:
        for path, setting in layer.items():
            if path[:2] == (section, "options") and path[2] not in known:
                raise unknown_key(
                    f"{section}.options.{path[2]}",
                    setting.origin,
                    [f"{section}.options.{name}" for name in sorted(known)],
                )


def options_of(
    descriptor: Descriptor, section: str | None, config: Config | None, given: Mapping[str, Any] | None = None
) -> Any:
    """The validated options of a contribution; None when it declares none.

    :param section: of the configuration that holds them, None when no section does.
    :param given: by the call, over the configured ones.
    :raises ConfigError: unknown key, wrong type, impossible value.
    """
    label = f"{section}.options.{descriptor.name}" if section else descriptor.name
    settings: dict[str, Any] = config.options(section, descriptor.name) if section and config else {}
    settings.update(given or {})
    if descriptor.options is None:
        for key, raw in settings.items():
            origin = raw.origin if isinstance(raw, Setting) else Origin("call", "keyword")
            raise unknown_key(f"{label}.{key}", origin, [])
        return None
    cls = _options_class(descriptor)
    names = _option_names(descriptor)
    for name in HANDED_OVER.get(section or "", ()):
        general = config.setting(f"{section}.{name}") if config else None
        if (
            general
            and name in names
            and name not in settings
            and getattr(getattr(config, str(section)), name) is not None
        ):
            settings[name] = general
    return structure(cls, settings, label)


def make(descriptor: Descriptor, *arguments: Any) -> Any:
    """Import a descriptor's factory and call it.

    :raises PluginError: whatever went wrong in the plugin.
    """
    factory: Callable[..., Any] = load_attribute(descriptor.factory)
    try:
        return factory(*arguments)
    except TokenmillError:
        raise
    except PLUGIN_FAILURES as error:
        label = KIND_OF_DESCRIPTOR[type(descriptor)].label
        raise PluginError(f"{label} '{descriptor.name}' cannot be made", why=reason_of(error)) from error


def _options_class(descriptor: Descriptor) -> type[Any]:
    cls = load_attribute(descriptor.options or "")
    if not (isinstance(cls, type) and attrs.has(cls)):
        raise PluginError(
            f"the options of '{descriptor.name}' cannot be used", why=f"{descriptor.options} is no attrs class"
        )
    return cls


def _option_names(descriptor: Descriptor) -> set[str]:
    if descriptor.options is None:
        return set()
    return {field.name for field in attrs.fields(_options_class(descriptor)) if field.init}
