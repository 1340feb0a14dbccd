"""From a model reference to a decoder directory on this machine, by asking the model sources."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from tokenmill.config import Config
from tokenmill.contracts.answers import Answer
from tokenmill.contracts.descriptors import ModelSourceDescriptor
from tokenmill.contracts.sourcing import ModelSource, NoProgress, Progress
from tokenmill.decisions import Decision, answered, refusals
from tokenmill.errors import PluginError, SourceError, TokenmillError
from tokenmill.hooks.attributes import PLUGIN_FAILURES, reason_of
from tokenmill.hooks.registry import Registry
from tokenmill.selection import make, options_of
from tokenmill.settings import DEFAULT, Origin


def resolve_model(
    ref: str | os.PathLike[str], config: Config, registry: Registry, progress: Progress | None = None
) -> Path:
    """A decoder directory or `.onnx` file.

    :raises SourceError: nobody accepts the reference, sources send it round in a circle, or a source failed.
    """
    return trace_reference(ref, config, registry, progress)[0]


def trace_reference(
    ref: str | os.PathLike[str],
    config: Config,
    registry: Registry,
    progress: Progress | None = None,
    origin: Origin = DEFAULT,
) -> tuple[Path, tuple[Decision, ...]]:
    """The same, with a decision for each reference on the way."""
    reference = os.fspath(ref)
    seen: list[str] = []
    decisions: list[Decision] = []
    while True:
        if reference in seen:
            raise SourceError("model sources send each other round in a circle", why=" -> ".join([*seen, reference]))
        seen.append(reference)
        name, source, answers = _accepting(reference, config, registry)
        try:
            target = source.resolve(reference, progress or NoProgress())
        except TokenmillError:
            raise
        except PLUGIN_FAILURES as error:
            raise SourceError(f"model source '{name}' failed on '{reference}'", why=reason_of(error)) from error
        decisions.append(Decision(f"source of {reference}", f"{name} -> {target}", tuple(answers), origin))
        if isinstance(target, Path):
            return target, tuple(decisions)
        reference = str(target)


def _accepting(reference: str, config: Config, registry: Registry) -> tuple[str, ModelSource, list[tuple[str, Answer]]]:
    """The first source that accepts, with its name and everybody's answer."""
    answers: list[tuple[str, Answer]] = []
    for descriptor in registry.active(ModelSourceDescriptor):
        made: list[ModelSource] = []

        def ask(descriptor: ModelSourceDescriptor = descriptor, made: list[ModelSource] = made) -> Answer:
            made.append(make(descriptor, options_of(descriptor, "model", config)))
            return made[0].accepts(reference)

        answer = answered(ask)
        answers.append((descriptor.name, answer))
        if answer:
            return descriptor.name, made[0], answers
    if not answers:
        raise PluginError("no model source is active", remedy="`tokenmill plugins` says why")
    raise SourceError(
        f"'{reference}' is no model that a source knows", why=refusals(answers), remedy=_advice(reference, registry)
    )


def _advice(reference: str, registry: Registry) -> str:
    aliases = sorted(
        {str(alias) for item in registry.active(ModelSourceDescriptor) for alias in item.metadata.get("aliases", ())}
    )
    if not aliases:
        return "give a directory, an .onnx or a .gguf file"
    close = difflib.get_close_matches(reference, aliases, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    if "://" in reference:
        hint = "download it and give its path; "
    return f"{hint}known names: {', '.join(aliases)}"
