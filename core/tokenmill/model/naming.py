"""A graph's ports as a line of a message."""

from __future__ import annotations

from tokenmill.model.graph import OnnxGraph, Port


def listing(graph: OnnxGraph) -> str:
    """Every port with its type and shape."""
    return f"the graph has the inputs {_side(graph.inputs)} and the outputs {_side(graph.outputs)}"


def _side(ports: tuple[Port, ...]) -> str:
    return "(" + "; ".join(str(port) for port in ports) + ")" if ports else "(none)"
