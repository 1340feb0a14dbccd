"""Tokenmill: a plugin-based runtime for ONNX language-model decoders.

`load` gives a `Model` that takes a prompt and gives text; `compile` runs any ONNX graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Not lazy: the submodule of the same name would take its place.
from tokenmill.compile import CompiledGraph, compile

if TYPE_CHECKING:
    from tokenmill.api import Model, load
    from tokenmill.contracts.processing import GenerationSettings
    from tokenmill.errors import TokenmillError
    from tokenmill.generation.cancelling import cancelled_by_interrupt
    from tokenmill.generation.conversation import Chat
    from tokenmill.generation.piece import Generation, Piece, Statistics, TokenProbability
    from tokenmill.session import Session

#: Imported when they are asked for: listing plugins and compiling a graph need none of them.
_LAZY = {
    "Chat": "tokenmill.generation.conversation",
    "Generation": "tokenmill.generation.piece",
    "GenerationSettings": "tokenmill.contracts.processing",
    "Model": "tokenmill.api",
    "Piece": "tokenmill.generation.piece",
    "Session": "tokenmill.session",
    "Statistics": "tokenmill.generation.piece",
    "TokenProbability": "tokenmill.generation.piece",
    "TokenmillError": "tokenmill.errors",
    "cancelled_by_interrupt": "tokenmill.generation.cancelling",
    "load": "tokenmill.api",
}

__all__ = [
    "Chat", "CompiledGraph", "Generation", "GenerationSettings", "Model", "Piece", "Session", "Statistics",
    "TokenProbability", "TokenmillError", "cancelled_by_interrupt", "compile", "load",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("tokenmill")
    if name not in _LAZY:
        raise AttributeError(f"module 'tokenmill' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
