"""Choices of assembly, with plugins made in place beside the real reference backend."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import onnx
import pytest
from attrs import field, frozen
from attrs.validators import in_
from tokenmill.assembly import assemble, generation_defaults, resolve_model, select_backend
from tokenmill.config import load_config
from tokenmill.contracts.answers import Accepted, Declined
from tokenmill.contracts.descriptors import (
    BackendDescriptor,
    Descriptor,
    ModelSourceDescriptor,
    StepRouterDescriptor,
    TraceSinkDescriptor,
)
from tokenmill.errors import BackendUnavailableError, ConfigError, PluginError, SourceError, UnsupportedOperatorError
from tokenmill.hooks.kinds import KIND_OF_DESCRIPTOR
from tokenmill.hooks.markers import hookimpl
from tokenmill.hooks.registry import Registry
from tokenmill.host_fallback import LazyHostFallback
from tokenmill.model.loading import open_graph
from tokenmill.selection import make_routers, make_tracer

ZOO = Path(__file__).parents[1] / "data" / "zoo"
MODULE = __name__


def registry(*descriptors: Descriptor, reference: bool = False) -> Registry:
    """A registry of these descriptors alone, each in a plugin of its own, and of the real numpy backend if wanted."""
    found = Registry()
    for index, descriptor in enumerate(descriptors):
        hook = KIND_OF_DESCRIPTOR[type(descriptor)].hook

        def implementation(descriptor: Descriptor = descriptor) -> list[Descriptor]:
            return [descriptor]

        implementation.__name__ = hook
        implementation.__defaults__ = (descriptor,)
        plugin = types.SimpleNamespace(TOKENMILL_API=(1, 0), **{hook: hookimpl(implementation)})
        found.register(plugin, f"plugin-{index}")
    if reference:
        import tokenmill_reference.plugin

        found.register(tokenmill_reference.plugin, "reference")
    assert not [str(problem) for record in found.records for problem in record.problems]
    return found


def backend(name: str, factory: str, priority: int = 0, **more: Any) -> BackendDescriptor:
    return BackendDescriptor(name=name, summary=name, factory=f"{MODULE}:{factory}", priority=priority, **more)


@frozen(kw_only=True)
class DeviceOptions:
    level: str = field(default="low", validator=in_(("low", "high")))
    threads: int = 1


@frozen
class Device:
    """A backend that only answers; its compile is never reached."""

    options: Any
    fallback: Any
    name: str = "device"

    def probe(self) -> Any:
        return Accepted(f"{self.options}")

    def compile(self, graph: Any, io: Any = None, progress: Any = None) -> Any:
        raise NotImplementedError


class Absent(Device):
    def probe(self) -> Any:
        return Declined("there is no such device", "plug it in")


class Crashing(Device):
    def probe(self) -> Any:
        raise OSError("libdevice.so not found")


class Vague(Device):
    def probe(self) -> Any:
        return True


def exiting(options: Any, fallback: Any) -> Any:
    sys.exit("no driver")


def config(**overrides: Any) -> Any:
    return load_config(env={}, overrides=overrides)


# --- backends --------------------------------------------------------------------------------------------------------


def test_auto_passes_over_everything_that_declines_and_keeps_the_reasons() -> None:
    found = registry(
        backend("absent", "Absent", 6),
        backend("crashing", "Crashing", 5),
        backend("vague", "Vague", 4),
        backend("exiting", "exiting", 3),
        backend("unimportable", "nothing_of_that_name", 2),
        backend("here", "Device", 1),
        backend("never-asked", "Device", 0),
    )
    chosen, decision = select_backend(registry=found, config=config())
    assert isinstance(chosen, Device) and decision.chosen == "here"
    reasons = {name: str(answer) for name, answer in decision.candidates if not answer}
    assert reasons == {
        "absent": "there is no such device (plug it in)",
        "crashing": "it raised OSError: libdevice.so not found",
        "vague": "it answered True instead of Accepted or Declined",
        "exiting": "backend 'exiting' cannot be made: SystemExit: no driver",
        "unimportable": f"'{MODULE}:nothing_of_that_name' cannot be imported: AttributeError: module '{MODULE}' has no "
        "attribute 'nothing_of_that_name'",
    }
    assert [name for name, _ in decision.candidates][-1] == "here"
    assert decision.lines()[0] == "backend: here (from default)"


def test_nobody_accepts_is_an_error_with_all_reasons() -> None:
    found = registry(backend("absent", "Absent"), backend("crashing", "Crashing"))
    with pytest.raises(BackendUnavailableError) as caught:
        select_backend("auto", {}, found, config=config())
    assert "absent: there is no such device (plug it in); crashing: it raised OSError" in str(caught.value)
    with pytest.raises(BackendUnavailableError, match="no backend plugin is active"):
        select_backend("auto", {}, registry(), config=config())


def test_a_named_backend_that_declines_is_not_replaced() -> None:
    found = registry(backend("absent", "Absent"), backend("here", "Device"))
    with pytest.raises(
        BackendUnavailableError, match=r"backend 'absent' cannot run here: absent: there is no such device"
    ):
        select_backend("absent", {}, found, config=config())


def test_options_come_from_the_call_the_configuration_and_the_general_settings() -> None:
    found = registry(backend("here", "Device", options=f"{MODULE}:DeviceOptions"))
    settings = config(**{"backend.options.here.level": "high", "backend.threads": 4})
    chosen, _ = select_backend("here", None, found, config=settings)
    assert chosen.options == DeviceOptions(level="high", threads=4)
    chosen, _ = select_backend("here", {"threads": 2}, found, config=settings)
    assert chosen.options == DeviceOptions(level="high", threads=2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"level": "middle"}, r"backend\.options\.here\.level = 'middle' cannot be used: 'level' must be in"),
        ({"threads": "2"}, r"backend\.options\.here\.threads = '2' cannot be used: expected an integer"),
        ({"lever": 1}, r"no key backend\.options\.here\.lever; did you mean backend\.options\.here\.level\?"),
    ],
)
def test_options_that_cannot_be_used_are_errors_of_the_configuration(options: dict[str, Any], text: str) -> None:
    found = registry(backend("here", "Device", options=f"{MODULE}:DeviceOptions"))
    with pytest.raises(ConfigError, match=text):
        select_backend("here", options, found, config=config())


def test_a_backend_without_options_takes_none() -> None:
    found = registry(backend("bare", "Device"))
    with pytest.raises(ConfigError, match=r"no key backend\.options\.bare\.level; allowed: nothing"):
        select_backend("bare", {"level": 1}, found, config=config())


def test_auto_passes_over_backends_without_the_options_of_the_call() -> None:
    found = registry(backend("bare", "Device", 9), backend("here", "Device", options=f"{MODULE}:DeviceOptions"))
    _, decision = select_backend("auto", {"level": "high"}, found, config=config())
    assert decision.chosen == "here"
    assert str(decision.candidates[0][1]) == "it has no option level"


def test_the_host_fallback_is_made_when_first_asked() -> None:
    chosen, _ = select_backend("here", {}, registry(backend("here", "Device"), reference=True), config=config())
    assert isinstance(chosen, Device)
    assert chosen.fallback.provider == "reference"
    assert chosen.fallback._fallback is None
    assert chosen.fallback.supports("", "Relu", 14)
    assert chosen.fallback._fallback is not None


def test_without_a_provider_host_operators_are_declined() -> None:
    fallback = LazyHostFallback(registry(backend("here", "Device")))
    assert "no active plugin offers host operators" in str(fallback.supports("", "Relu", 14))
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 14]> g (float[N] x) => (float[N] y) { y = Relu(x) }'
    )
    with pytest.raises(UnsupportedOperatorError, match="no host operator for Relu-14"):
        fallback.bind(open_graph(model).program.instructions[0])


def test_a_provider_that_cannot_be_imported_declines() -> None:
    broken = backend("broken", "Device", host_fallback=f"{MODULE}:no_such_thing")
    assert "cannot be imported" in str(LazyHostFallback(registry(broken)).supports("", "Relu", 14))


# --- model sources ---------------------------------------------------------------------------------------------------


class Directories:
    """Accepts directories."""

    name = "directory"

    def __init__(self, options: Any) -> None: ...

    def accepts(self, reference: str) -> Any:
        return Accepted() if Path(reference).is_dir() else Declined("no directory of that name")

    def resolve(self, reference: str, progress: Any) -> Path | str:
        return Path(reference)


class Aliases(Directories):
    """Answers with another reference."""

    table = {"tiny": "small", "small": str(ZOO / "qwen2-fp32"), "round": "about", "about": "round", "bad": "bad-one"}  # noqa: RUF012

    def accepts(self, reference: str) -> Any:
        return Accepted() if reference in self.table else Declined("no known name")

    def resolve(self, reference: str, progress: Any) -> Path | str:
        if reference == "bad":
            raise KeyError("the table is broken")
        return self.table[reference]


def sources() -> Registry:
    return registry(
        ModelSourceDescriptor(
            name="alias",
            summary="",
            factory=f"{MODULE}:Aliases",
            priority=1,
            metadata={"aliases": ["tiny", "small", "round"]},
        ),
        ModelSourceDescriptor(name="directory", summary="", factory=f"{MODULE}:Directories"),
    )


def test_a_reference_is_followed_through_several_sources() -> None:
    assert resolve_model("tiny", config(), sources()) == ZOO / "qwen2-fp32"
    assert resolve_model(ZOO / "qwen2-fp32", config(), sources()) == ZOO / "qwen2-fp32"


def test_a_circle_of_references_is_an_error() -> None:
    with pytest.raises(SourceError, match="circle: round -> about -> round"):
        resolve_model("round", config(), sources())


def test_an_unknown_reference_lists_reasons_and_names() -> None:
    with pytest.raises(SourceError) as caught:
        resolve_model("smal", config(), sources())
    assert str(caught.value) == (
        "'smal' is no model that a source knows: alias: no known name; directory: no directory of that name; "
        "did you mean 'small'? known names: round, small, tiny"
    )


def test_a_source_that_breaks_is_named() -> None:
    with pytest.raises(SourceError, match="model source 'alias' failed on 'bad': KeyError"):
        resolve_model("bad", config(), sources())


def test_without_sources_nothing_resolves() -> None:
    with pytest.raises(PluginError, match="no model source is active"):
        resolve_model("tiny", config(), registry())


# --- routers and sinks -----------------------------------------------------------------------------------------------


def good_router(options: Any) -> Any:
    return "router"


def bad_router(options: Any) -> Any:
    raise RuntimeError("cannot be made")


class Sink:
    def __init__(self, options: Any) -> None:
        self.events: list[Any] = []

    def emit(self, event: Any) -> None:
        self.events.append(event)

    def close(self) -> None: ...


def test_routers_come_by_priority_and_a_broken_one_is_left_out_with_its_reason() -> None:
    found = registry(
        StepRouterDescriptor(name="last", summary="", factory=f"{MODULE}:good_router", priority=1),
        StepRouterDescriptor(name="broken", summary="", factory=f"{MODULE}:bad_router", priority=2),
        StepRouterDescriptor(name="first", summary="", factory=f"{MODULE}:good_router", priority=3),
    )
    routers, decision = make_routers(found)
    assert (len(routers), decision.chosen) == (2, "first, last")
    assert "RuntimeError: cannot be made" in str(dict(decision.candidates)["broken"])


def test_configured_sinks_receive_events() -> None:
    found = registry(TraceSinkDescriptor(name="list", summary="", factory=f"{MODULE}:Sink"))
    assert not make_tracer(config(), found).enabled
    tracer = make_tracer(config(trace={"sinks": ["list"]}), found)
    tracer.event("hello")
    assert [event.name for event in tracer._sinks[0].events] == ["hello"]  # type: ignore[attr-defined]
    with pytest.raises(PluginError, match="there is no trace sink 'lost'; did you mean 'list'"):
        make_tracer(config(trace={"sinks": ["lost"]}), found)


# --- names and defaults ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "error", "text"),
    [
        ({"backend.name": "gpu"}, PluginError, "there is no backend 'gpu'"),
        ({"cache.strategy": "paper"}, PluginError, "there is no cache strategy 'paper'"),
        ({"capture.policy": "always"}, PluginError, "there is no capture policy 'always'"),
        ({"speculative.proposer": "oracle"}, PluginError, "there is no proposer 'oracle'"),
        ({"trace.sinks": ["x"]}, PluginError, "there is no trace sink 'x'"),
        ({"backend.options.referense.level": 1}, ConfigError, "did you mean backend.options.reference?"),
    ],
)
def test_names_are_checked_before_a_model_is_looked_for(
    overrides: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        assemble("no such model", config(**overrides), registry(reference=True))
    assert text in str(caught.value)


def test_no_model_named_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"no model was named; pass a reference or set model\.ref"):
        assemble(None, config(), registry(reference=True))


def test_a_models_sampling_settings_count_only_when_it_samples() -> None:
    search = {"do_sample": False, "temperature": 0.7, "top_k": 50, "repetition_penalty": 1.1, "max_length": 2048}
    assert generation_defaults(search) == {"repetition_penalty": 1.1}
    assert generation_defaults({**search, "do_sample": True, "top_p": None}) == {
        "repetition_penalty": 1.1,
        "temperature": 0.7,
        "top_k": 50,
    }
