"""Which tokens are worth verifying next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from attrs import frozen

from tokenmill.contracts.cache import LentPort


@frozen(eq=False)
class Proposal:
    """Draft tokens, and per token the distribution they were drawn from (`[tokens, vocab] float32`), if there was one."""

    tokens: tuple[int, ...]
    probabilities: npt.NDArray[np.float32] | None = None


class ProposerContext(Protocol):
    """What a proposer may see of the target: read-only, valid during the call."""

    @property
    def tokens(self) -> Sequence[int]: ...

    @property
    def hidden(self) -> npt.NDArray[Any] | None:
        """The target's last hidden row, when it declares one."""

    def lend(self, ports: Sequence[str]) -> Sequence[LentPort]: ...


class Proposer(Protocol):
    """Made by the descriptor's factory: `factory(options)`."""

    @property
    def name(self) -> str: ...

    def propose(self, context: ProposerContext, width: int) -> Proposal: ...

    def accepted(self, count: int) -> None: ...

    def reset(self) -> None: ...
