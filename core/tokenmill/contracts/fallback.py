"""Operators on the host, offered to every backend: right before fast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tokenmill.contracts.answers import Answer
from tokenmill.model.program import Instruction

#: Takes the instruction's inputs as host values (None for an omitted one), returns its outputs in order.
HostOperator = Callable[[Sequence[Any]], Sequence[Any]]


class HostFallback(Protocol):
    """Leaf operators in numpy. Control flow is never handed over: backends compile its bodies as sub-plans."""

    def supports(self, domain: str, operator: str, version: int) -> Answer: ...

    def bind(self, instruction: Instruction) -> HostOperator:
        """Prepare one node. The returned operator is pure, and safe to call from several threads.

        :raises UnsupportedOperatorError: when `supports` declines.
        """
