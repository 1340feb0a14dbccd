"""What generated inputs have in common: they hold nothing, so there is nothing to take back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
from attrs import frozen
from tokenmill.contracts.step import Step
from tokenmill.model.graph import Port


@frozen(eq=False)
class GeneratedInput:
    """A port whose value follows from the step alone.

    :param make: the value to feed.
    """

    port: Port
    source: str
    make: Callable[[Step], npt.NDArray[Any]]
    supplied: bool = False

    def prepare(self, step: Step) -> None:
        """Every step can be written."""

    def write(self, step: Step) -> npt.NDArray[Any]:
        return self.make(step)

    def rewind(self, length: int) -> None:
        """It holds nothing."""

    def abort(self, step: Step) -> None:
        """It holds nothing."""


def rank_of(port: Port, default: int) -> int:
    """The declared rank, else the usual one."""
    return default if port.shape is None else len(port.shape)
