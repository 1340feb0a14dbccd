"""`tokenmill inspect`: a model's ports, roles, pairs, operators and memory."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import click

from tokenmill.assembly import Opened, cache_bytes, open_model, select_backend
from tokenmill.cli.settings import config_options, read_config
from tokenmill.errors import UnsupportedOperatorError
from tokenmill.model.memory import estimate_memory
from tokenmill.model.program import Instruction

_ROLES = (
    "logits_output", "sequence_source", "kv_ownership", "token_input", "inputs_embeds_input", "attention_mask_input",
    "position_ids_input", "hidden_output",
)  # fmt: skip


@click.command()
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@config_options
def inspect(model: str, as_json: bool, config_file: Path | None, assignments: tuple[str, ...]) -> None:
    """Ports, roles, operators and memory of MODEL."""
    opened = open_model(config=read_config(config_file, assignments, {"model.ref": model}))
    report = {**_model(opened), **_compiled(opened)}
    click.echo(json.dumps(report, indent=2) if as_json else "\n".join(_lines(report)))


def _model(opened: Opened) -> dict[str, Any]:
    io, graph, metadata = opened.decoder.io, opened.decoder.graph, opened.decoder.metadata
    operators = Counter(_name(instruction) for instruction in graph.program.walk())
    return {
        "model": opened.reference,
        "path": str(opened.path),
        "opsets": dict(graph.opsets),
        "context_length": metadata.context_length,
        "vocab_size": metadata.vocab_size,
        "inputs": [str(port) for port in graph.inputs],
        "outputs": [str(port) for port in graph.outputs],
        "roles": {
            role: {"value": value, "source": io.sources.get(role, "default")}
            for role in _ROLES
            if (value := getattr(io, role)) is not None
        },
        "pairs": [
            {
                "group": group.name,
                "kind": group.kind,
                "past": port.pair.past,
                "present": port.pair.present,
                "shape": list(port.extent(opened.capacity)),
                "sequence_axis": port.sequence_axis,
                "dtype": port.dtype.name,
            }
            for group in opened.groups
            for port in group.ports
        ],
        "operators": dict(operators.most_common()),
        "capacity": opened.capacity,
        "cache_bytes": cache_bytes(opened.groups, opened.capacity),
    }


def _compiled(opened: Opened) -> dict[str, Any]:
    """What the chosen backend makes of the graph. An operator that nobody has is reported, not raised."""
    backend, _ = select_backend(registry=opened.registry, config=opened.config)
    try:
        executable = backend.compile(opened.decoder.graph, opened.decoder.io)
    except UnsupportedOperatorError as error:
        weights = estimate_memory(opened.decoder.graph).weights
        return {"backend": backend.name, "unsupported": str(error), "weight_bytes": weights, "host_fallback": {}}
    try:
        elsewhere = Counter(use.operator for use in executable.operators() if use.runs_on != backend.name)
        weights = executable.weight_bytes
        return {"backend": backend.name, "unsupported": None, "weight_bytes": weights, "host_fallback": dict(elsewhere)}
    finally:
        executable.close()


def _lines(report: dict[str, Any]) -> list[str]:
    lines = [f"model: {report['model']}", f"path: {report['path']}"]
    lines.append(
        "opsets: " + ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in report["opsets"].items())
    )
    lines.append(
        f"context: {report['context_length'] or 'not stated'}, vocabulary: {report['vocab_size'] or 'not stated'}"
    )
    for title in ("inputs", "outputs"):
        lines += [f"{title}:", *(f"  {port}" for port in report[title])]
    lines.append("roles:")
    lines += [f"  {role}: {found['value']} (from {found['source']})" for role, found in report["roles"].items()]
    lines.append(f"pairs at {report['capacity']} tokens:")
    lines += [
        f"  {pair['past']} -> {pair['present']}: {pair['kind']}, {pair['dtype']}{pair['shape']}"
        for pair in report["pairs"]
    ]
    lines.append("operators:")
    lines += [f"  {name} x {count}" for name, count in report["operators"].items()]
    lines.append(f"backend: {report['backend']}")
    if report["unsupported"]:
        lines.append(f"  unsupported: {report['unsupported']}")
    lines += [f"  on the host: {name} x {count}" for name, count in sorted(report["host_fallback"].items())]
    lines.append(f"weights: {report['weight_bytes'] / 2**20:,.1f} MiB")
    lines.append(f"cache: {report['cache_bytes'] / 2**20:,.1f} MiB at {report['capacity']} tokens")
    return lines


def _name(instruction: Instruction) -> str:
    return f"{instruction.domain}::{instruction.operator}" if instruction.domain else instruction.operator
