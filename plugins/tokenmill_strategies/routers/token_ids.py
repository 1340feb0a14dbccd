"""Token ids: `[batch, rows]`, or `[rows]`."""

from __future__ import annotations

from typing import Any

from tokenmill.contracts.routing import StepInput
from tokenmill.errors import PortError
from tokenmill.model.graph import Port
from tokenmill.model.roles import IoSpec

from tokenmill_strategies.routers.input import GeneratedInput, rank_of


class TokenIds:
    """Claims the port whose role is `token_input`."""

    name = "token_ids"

    def __init__(self, options: Any = None) -> None:
        """Takes no options."""

    def claim(self, port: Port, io: IoSpec) -> StepInput | None:
        """:raises PortError: a type or rank that cannot carry ids."""
        if port.name != io.token_input:
            return None
        if port.element not in ("int64", "int32") or rank_of(port, 2) not in (1, 2):
            raise PortError(
                f"'{port}' cannot carry token ids",
                why="int64 or int32 with [batch, rows] or [rows] is needed",
                remedy="correct token_input in model.io",
            )
        dtype, flat = port.dtype, rank_of(port, 2) == 1
        return GeneratedInput(
            port,
            self.name,
            lambda step: (step.tokens[0] if flat else step.tokens).astype(dtype, copy=False),
        )
