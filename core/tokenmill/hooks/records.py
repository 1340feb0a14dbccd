"""What is known of each plugin, loaded or not."""

from __future__ import annotations

from typing import Literal

from attrs import evolve, frozen

from tokenmill.contracts.descriptors import Descriptor
from tokenmill.hooks.kinds import Kind

PluginState = Literal["active", "disabled", "failed"]


@frozen
class Problem:
    """Something that a plugin lost without failing as a whole: one hook, or one descriptor.

    :param subject: name of the hook, or kind and name of the descriptor.
    """

    subject: str
    reason: str
    details: str = ""

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}"


@frozen
class Contribution:
    """A descriptor, and why it cannot be chosen when `conflict` says so."""

    kind: Kind
    descriptor: Descriptor
    plugin: str
    distribution: str | None
    builtin: bool
    conflict: str = ""

    @property
    def name(self) -> str:
        return self.descriptor.name

    @property
    def origin(self) -> str:
        """Plugin and distribution, for messages."""
        return f"plugin '{self.plugin}'" + (f" of {self.distribution}" if self.distribution else "")


@frozen
class PluginRecord:
    """One plugin.

    :param name: of its entry point, or the name given to `Registry.register`.
    :param distribution: what pip calls it; None for a registered object.
    :param target: what the entry point loads.
    :param hooks: hooks that it implements.
    :param reason: why it is disabled or failed.
    :param details: end of the traceback, when it failed with one.
    :param problems: what it lost although it is active.
    """

    name: str
    version: str | None
    distribution: str | None
    target: str
    builtin: bool
    state: PluginState = "active"
    api: tuple[int, int] | None = None
    hooks: tuple[str, ...] = ()
    contributions: tuple[Contribution, ...] = ()
    reason: str = ""
    details: str = ""
    problems: tuple[Problem, ...] = ()

    @property
    def title(self) -> str:
        return f"plugin '{self.name}'" + (f" of {self.distribution} {self.version}" if self.distribution else "")

    def failed(self, reason: str, details: str = "") -> PluginRecord:
        return evolve(self, state="failed", reason=reason, details=details, contributions=(), problems=())
