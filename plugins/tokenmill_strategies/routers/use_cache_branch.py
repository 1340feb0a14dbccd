"""The switch of a merged decoder: one `If` whose branches compute with and without a past.

Exporters call it `use_cache_branch`; it is true once there is something in the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tokenmill.contracts.routing import StepInput
from tokenmill.model.graph import Port
from tokenmill.model.roles import IoSpec

from tokenmill_strategies.routers.input import GeneratedInput, rank_of


class UseCacheBranch:
    """Claims a bool of one element with that name."""

    name = "use_cache_branch"

    def __init__(self, options: Any = None) -> None:
        """Takes no options."""

    def claim(self, port: Port, io: IoSpec) -> StepInput | None:
        if port.name.rpartition(".")[2] != "use_cache_branch" or port.element != "bool":
            return None
        shape = (1,) * rank_of(port, 1)
        return GeneratedInput(port, self.name, lambda step: np.full(shape, step.position_start > 0))
