"""The rule for equal names, which does not know installation order.

A name of a kind belongs to one contribution. When several bring it, the built-in one keeps it and the others are
reported; when none is built in, nobody gets it, and all are reported. The same rule holds for the names of plugins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from attrs import evolve

from tokenmill.hooks.records import PluginRecord, Problem


def settle_plugin_names(records: Iterable[PluginRecord]) -> list[PluginRecord]:
    """Fail the records whose plugin name another one holds, too."""
    found = list(records)
    rivals: dict[str, list[PluginRecord]] = defaultdict(list)
    for record in found:
        if record.state == "active":
            rivals[record.name].append(record)
    settled = []
    for record in found:
        others = [other for other in rivals[record.name] if other is not record]
        reason = _lost(record.builtin, others, lambda other: other.title) if record.state == "active" and others else ""
        settled.append(record.failed(f"the plugin name '{record.name}' {reason}") if reason else record)
    return settled


def settle_contributions(records: Iterable[PluginRecord]) -> list[PluginRecord]:
    """Mark contributions whose kind and name another active plugin brings, too."""
    found = list(records)
    rivals = defaultdict(list)
    for record in found:
        for contribution in record.contributions:
            rivals[contribution.kind.label, contribution.name].append(contribution)
    settled = []
    for record in found:
        contributions, problems = [], list(record.problems)
        for contribution in record.contributions:
            subject = f"{contribution.kind.label} '{contribution.name}'"
            others = [
                other for other in rivals[contribution.kind.label, contribution.name] if other is not contribution
            ]
            conflict = _lost(record.builtin, others, lambda other: other.origin) if others else ""
            contributions.append(evolve(contribution, conflict=conflict))
            if conflict:
                problems.append(Problem(subject, f"the name {conflict}"))
        settled.append(evolve(record, contributions=tuple(contributions), problems=tuple(problems)))
    return settled


def _lost(builtin: bool, others: list[Any], title: Any) -> str:
    """Why a name is not ours, or nothing when it is."""
    keeper = [other for other in others if other.builtin]
    if builtin and not keeper:
        return ""
    if keeper and not builtin:
        return f"is built in ({title(keeper[0])} keeps it)"
    names = ", ".join(sorted(title(other) for other in others))
    return f"conflicts with {names}; disable one of them under plugins.disabled"
