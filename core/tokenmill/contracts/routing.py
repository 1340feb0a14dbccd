"""What fills each non-KV input at every step."""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt

from tokenmill.contracts.step import Step
from tokenmill.model.graph import Port
from tokenmill.model.roles import IoSpec


class StepInput(Protocol):
    """Fills one port. `prepare` may refuse; `write` may not."""

    @property
    def port(self) -> Port: ...

    @property
    def source(self) -> str:
        """What it carries, for `inspect`: `token_ids`, `attention_mask`, `position_ids`, `routed`, ..."""

    @property
    def supplied(self) -> bool:
        """The caller gives its value with each step, in `step.routed` under the port's name; else it is generated."""

    def prepare(self, step: Step) -> None:
        """Check the step. Raises StepError before anything changes."""

    def write(self, step: Step) -> npt.NDArray[Any]:
        """The value to feed."""

    def rewind(self, length: int) -> None: ...

    def abort(self, step: Step) -> None: ...


class StepRouter(Protocol):
    """Claims ports. The first claim in the stated order wins; a port that nobody claims is *routed* by the caller."""

    @property
    def name(self) -> str: ...

    def claim(self, port: Port, io: IoSpec) -> StepInput | None: ...
