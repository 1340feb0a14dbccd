"""`tokenmill plugins`: what is installed, what it contributes, and what failed. Imports nothing that a plugin would."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokenmill.cli.settings import config_options, read_config
from tokenmill.hooks.markers import API_VERSION
from tokenmill.hooks.records import PluginRecord
from tokenmill.hooks.registry import default_registry

_STYLES = {"active": "green", "disabled": "yellow", "failed": "red"}


@click.command()
@click.option("--verbose", "-v", is_flag=True, help="Every contribution, its capabilities, and tracebacks.")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@config_options
def plugins(verbose: bool, as_json: bool, config_file: Path | None, assignments: tuple[str, ...]) -> None:
    """Installed plugins, what they contribute, and what failed."""
    disabled = read_config(config_file, assignments).plugins.disabled
    records = default_registry(disabled).records
    if as_json:
        api = list(API_VERSION)
        click.echo(json.dumps({"api": api, "plugins": [plugin_json(record) for record in records]}, indent=2))
        return
    # Piped, the width of nobody's terminal must not change the bytes.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(_table(records))
    for record in records:
        _print_troubles(record, verbose)
    if verbose:
        for record in records:
            if record.hooks and record.state == "active":
                console.print(Text(f"\n{record.name}: {', '.join(record.hooks)}", style="bold"))
                console.print(_contributions(record))


def plugin_json(record: PluginRecord) -> dict[str, Any]:
    """One record as stable JSON: keys are added, never renamed or removed."""
    return {
        "name": record.name,
        "version": record.version,
        "distribution": record.distribution,
        "target": record.target,
        "builtin": record.builtin,
        "api": list(record.api) if record.api else None,
        "state": record.state,
        "reason": record.reason,
        "details": record.details,
        "hooks": list(record.hooks),
        "contributions": [
            {
                "kind": item.kind.label,
                "name": item.name,
                "summary": item.descriptor.summary,
                "capabilities": list(item.descriptor.capabilities),
                "priority": item.descriptor.priority,
                "options": item.descriptor.options,
                "conflict": item.conflict,
            }
            for item in record.contributions
        ],
        "problems": [
            {"subject": problem.subject, "reason": problem.reason, "details": problem.details}
            for problem in record.problems
        ],
    }


def _table(records: tuple[PluginRecord, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("plugin", "version", "distribution", "state", "contributes"):
        table.add_column(column, overflow="fold")
    for record in records:
        contributed = ", ".join(item.name for item in record.contributions if not item.conflict)
        state = Text(record.state + (" *" if record.problems else ""), style=_STYLES[record.state])
        table.add_row(record.name, record.version or "-", record.distribution or "-", state, contributed or "-")
    return table


def _print_troubles(record: PluginRecord, verbose: bool) -> None:
    troubles = [(f"{record.name} {record.state}", record.reason, record.details)] if record.reason else []
    troubles += [(f"{record.name} * {problem.subject}", problem.reason, problem.details) for problem in record.problems]
    for subject, reason, details in troubles:
        click.echo(f"{subject}: {reason}")
        if verbose and details:
            click.echo(details)


def _contributions(record: PluginRecord) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("kind", "name", "priority", "capabilities", "summary"):
        table.add_column(column, overflow="fold")
    for item in record.contributions:
        name = f"{item.name} (conflict)" if item.conflict else item.name
        capabilities = ", ".join(item.descriptor.capabilities) or "-"
        table.add_row(item.kind.label, name, str(item.descriptor.priority), capabilities, item.descriptor.summary)
    return table
