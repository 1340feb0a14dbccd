"""`tokenmill explain`: what would be chosen for a model, who was asked, and what each answered."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import click

from tokenmill.assembly import Assembly, assemble
from tokenmill.cli.settings import config_options, read_config
from tokenmill.contracts.answers import Accepted
from tokenmill.contracts.backend import OperatorUse
from tokenmill.decisions import Decision


@click.command()
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@config_options
def explain(model: str, as_json: bool, config_file: Path | None, assignments: tuple[str, ...]) -> None:
    """What would be chosen for MODEL, and why."""
    assembly = assemble(config=read_config(config_file, assignments, {"model.ref": model}))
    try:
        uses = [use for use in assembly.executable.operators() if use.runs_on != assembly.backend.name]
        if as_json:
            click.echo(json.dumps(_as_json(assembly, uses), indent=2))
            return
        for decision in assembly.decisions:
            click.echo("\n".join(decision.lines()))
        for key, origin in _origins(assembly).items():
            click.echo(f"{key}: {origin['value']!r} (from {origin['origin']})")
        click.echo(f"operators outside backend '{assembly.backend.name}': {len(uses) or 'none'}")
        for (where, operator), count in sorted(Counter((use.runs_on, _title(use)) for use in uses).items()):
            click.echo(f"  {operator} x {count}: {where}")
    finally:
        assembly.close()


def _as_json(assembly: Assembly, uses: list[OperatorUse]) -> dict[str, Any]:
    return {
        "model": assembly.opened.reference,
        "path": str(assembly.path),
        "backend": assembly.backend.name,
        "device": assembly.executable.device,
        "capacity": assembly.capacity,
        "decisions": [decision_json(decision) for decision in assembly.decisions],
        "settings": _origins(assembly),
        "host_fallback": [{"node": use.node, "operator": _title(use), "runs_on": use.runs_on} for use in uses],
    }


def decision_json(decision: Decision) -> dict[str, Any]:
    return {
        "subject": decision.subject,
        "chosen": decision.chosen,
        "origin": str(decision.origin),
        "candidates": [
            {
                "name": name,
                "accepted": bool(answer),
                "reason": answer.note if isinstance(answer, Accepted) else answer.reason,
                "remedy": "" if isinstance(answer, Accepted) else answer.remedy,
            }
            for name, answer in decision.candidates
        ],
    }


def _origins(assembly: Assembly) -> dict[str, dict[str, Any]]:
    """Every setting that is not a default, with the value that won and its origin."""
    config = assembly.config
    return {key: {"value": config.value(key), "origin": str(config.origin(key))} for key in config.keys_set()}


def _title(use: OperatorUse) -> str:
    name = f"{use.domain}::{use.operator}" if use.domain else use.operator
    return f"{name}-{use.version}"
