"""The numpy backend: runs on every machine, and is the oracle that other backends are compared with."""

from __future__ import annotations

from typing import Any

from tokenmill.contracts.answers import Accepted, Answer
from tokenmill.contracts.fallback import HostFallback
from tokenmill.contracts.sourcing import Progress
from tokenmill.model.graph import OnnxGraph
from tokenmill.model.roles import IoSpec

from tokenmill_reference.executable import ReferenceExecutable
from tokenmill_reference.fallback import ReferenceFallback
from tokenmill_reference.plan import build_plan


class ReferenceBackend:
    """Compiles a graph into numpy calls. Takes no options.

    :param fallback: supplies the leaf operators; None takes this package's own.
    """

    name = "reference"

    def __init__(self, fallback: HostFallback | None = None) -> None:
        self._fallback = ReferenceFallback() if fallback is None else fallback

    def probe(self) -> Answer:
        return Accepted("numpy runs everywhere")

    def compile(
        self, graph: OnnxGraph, io: IoSpec | None = None, progress: Progress | None = None
    ) -> ReferenceExecutable:
        """Bind every node once.

        :raises UnsupportedOperatorError: names every operator that is missing, those of subgraphs included.
        :raises ModelError: a node whose attributes do not fit its operator.
        """
        return ReferenceExecutable(graph, build_plan(graph.program, self._fallback))


def create(options: Any = None, fallback: HostFallback | None = None) -> ReferenceBackend:
    """Factory named by the descriptor."""
    return ReferenceBackend(fallback)
