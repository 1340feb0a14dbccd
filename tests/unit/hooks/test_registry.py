"""The registry with plugins made in place."""

from __future__ import annotations

import types
from typing import Any

import pytest
from tokenmill.contracts.descriptors import BackendDescriptor, ProposerDescriptor
from tokenmill.errors import PluginError
from tokenmill.hooks import specs
from tokenmill.hooks.kinds import KINDS
from tokenmill.hooks.markers import hookimpl
from tokenmill.hooks.registry import Registry, default_registry


def backend(name: str, priority: int = 0) -> BackendDescriptor:
    return BackendDescriptor(name=name, summary="a test's own", factory="nowhere:nothing", priority=priority)


def plugin(*descriptors: BackendDescriptor, api: Any = (1, 0), **members: Any) -> types.SimpleNamespace:
    @hookimpl
    def tokenmill_backends() -> list[BackendDescriptor]:
        return list(descriptors)

    return types.SimpleNamespace(TOKENMILL_API=api, tokenmill_backends=tokenmill_backends, **members)


def test_candidates_come_by_priority_then_name_whatever_the_order_of_registration() -> None:
    for order in (["b", "a", "z"], ["z", "b", "a"]):
        registry = Registry()
        for name in order:
            registry.register(plugin(backend(name, priority=5 if name == "z" else 0)), f"plugin-{name}")
        assert [found.name for found in registry.active(BackendDescriptor)] == ["z", "a", "b"]


def test_registering_a_name_again_replaces_it() -> None:
    registry = Registry()
    registry.register(plugin(backend("old")), "mine")
    registry.register(plugin(backend("new")), "mine")
    assert [found.name for found in registry.active(BackendDescriptor)] == ["new"]
    assert len(registry.records) == 1


def test_a_name_that_two_plugins_bring_belongs_to_neither() -> None:
    registry = Registry()
    registry.register(plugin(backend("twin"), backend("lone")), "one")
    registry.register(plugin(backend("twin")), "two")
    assert [found.name for found in registry.active(BackendDescriptor)] == ["lone"]
    with pytest.raises(PluginError, match=r"backend 'twin' cannot be chosen: the name conflicts with plugin 'two'"):
        registry.find(BackendDescriptor, "twin")
    assert all("conflicts" in str(record.problems[0]) for record in registry.records)


def test_the_conflict_ends_when_one_of_them_is_replaced() -> None:
    registry = Registry()
    registry.register(plugin(backend("twin")), "one")
    registry.register(plugin(backend("twin")), "two")
    registry.register(plugin(backend("other")), "two")
    assert registry.find(BackendDescriptor, "twin").name == "twin"
    assert not any(record.problems for record in registry.records)


def test_one_plugin_cannot_bring_a_name_twice() -> None:
    registry = Registry()
    record = registry.register(plugin(backend("same"), backend("same")), "mine")
    assert registry.active(BackendDescriptor) == ()
    assert "conflicts" in record.problems[0].reason


def test_the_same_name_in_two_kinds_is_no_conflict() -> None:
    @hookimpl
    def tokenmill_proposers() -> list[ProposerDescriptor]:
        return [ProposerDescriptor(name="same", summary="", factory="nowhere:nothing")]

    registry = Registry()
    record = registry.register(plugin(backend("same"), tokenmill_proposers=tokenmill_proposers), "mine")
    assert record.problems == ()
    assert record.hooks == ("tokenmill_backends", "tokenmill_proposers")


@pytest.mark.parametrize(
    ("api", "reason"),
    [
        (None, "declares no TOKENMILL_API"),
        ((0, 9), "written for plugin API 0.9"),
        ((1, 1), "needs plugin API 1.1"),
        ("1.0", "tuple of two integers"),
        ((1,), "tuple of two integers"),
        ((True, 0), "tuple of two integers"),
        ([1, 0], "tuple of two integers"),
    ],
)
def test_the_handshake_refuses(api: Any, reason: str) -> None:
    record = Registry().register(plugin(backend("late"), api=api), "mine")
    assert (record.state, record.contributions) == ("failed", ())
    assert reason in record.reason


def test_an_object_whose_attributes_raise_is_a_failed_plugin() -> None:
    class Hostile:
        @property
        def TOKENMILL_API(self) -> tuple[int, int]:
            raise OSError("no such device")

    record = Registry().register(Hostile(), "hostile")
    assert record.reason == "OSError: no such device"
    assert "Hostile" not in record.target or record.details.endswith("OSError: no such device")


def test_an_interrupt_is_not_swallowed() -> None:
    @hookimpl
    def tokenmill_backends() -> list[BackendDescriptor]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Registry().register(types.SimpleNamespace(TOKENMILL_API=(1, 0), tokenmill_backends=tokenmill_backends), "slow")


def test_a_wrapper_is_reported() -> None:
    @hookimpl(wrapper=True)
    def tokenmill_backends():  # type: ignore[no-untyped-def]
        return (yield)

    record = Registry().register(
        types.SimpleNamespace(TOKENMILL_API=(1, 0), tokenmill_backends=tokenmill_backends), "wrapper"
    )
    assert "nothing to wrap" in record.problems[0].reason


def test_a_disabled_plugin_is_listed_and_not_called() -> None:
    @hookimpl
    def tokenmill_backends() -> list[BackendDescriptor]:
        raise AssertionError("it was called")

    registry = Registry(disabled=["quiet", "absent"])
    record = registry.register(
        types.SimpleNamespace(TOKENMILL_API=(1, 0), tokenmill_backends=tokenmill_backends), "quiet"
    )
    assert (record.state, record.reason) == ("disabled", "it is named in plugins.disabled")
    assert [found.name for found in registry.records] == ["absent", "quiet"]
    assert "no such plugin is installed" in registry.records[0].reason
    with pytest.raises(PluginError, match="plugin 'quiet' is disabled"):
        registry.find(BackendDescriptor, "quiet")


def test_a_missing_name_gets_close_matches_and_what_did_not_load() -> None:
    registry = Registry(disabled=["away"])
    registry.register(plugin(backend("granite")), "mine")
    with pytest.raises(PluginError) as caught:
        registry.find(BackendDescriptor, "granit")
    assert "there is no backend 'granit'" in caught.value.what
    assert "'away' is disabled" in caught.value.why
    assert caught.value.remedy == "did you mean 'granite'?"


def test_every_hook_has_a_kind_and_says_what_it_is_for() -> None:
    hooks = {name for name in vars(specs) if name.startswith("tokenmill_")}
    assert hooks == {kind.hook for kind in KINDS}
    for kind in KINDS:
        text = getattr(specs, kind.hook).__doc__
        assert "Arguments:" in text and "Returns" in text and "Called" in text
        assert kind.descriptor.__name__ in text


def test_the_default_registry_is_made_once_for_each_set_of_disabled_names() -> None:
    assert default_registry() is default_registry(())
    assert default_registry(["cpu"]) is not default_registry()
    assert default_registry(["cpu"]) is default_registry(("cpu",))
