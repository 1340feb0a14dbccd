"""Inputs that no router claims: the caller supplies them with each step, by exact port name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tokenmill.contracts.routing import StepInput
from tokenmill.contracts.step import Step
from tokenmill.errors import RoutedInputError
from tokenmill.model.graph import Port

#: Values by port name: pairs, or a mapping.
RoutedPairs = Iterable[tuple[str, Any]] | Mapping[str, Any]


class RoutedInput:
    """Hands the caller's value on, once it fits the port."""

    source = "routed"
    supplied = True

    def __init__(self, port: Port) -> None:
        self.port = port

    def prepare(self, step: Step) -> None:
        value = step.routed.get(self.port.name)
        if self.port.kind != "tensor":
            return
        if not isinstance(value, np.ndarray):
            raise self._refused(f"a {type(value).__name__}", "an array is needed")
        if self.port.element and value.dtype != self.port.dtype:
            raise self._refused(f"{value.dtype.name}{list(value.shape)}", f"convert it to {self.port.dtype.name}")
        declared = self.port.shape
        if declared is not None and not (
            len(declared) == value.ndim
            and all(not isinstance(d, int) or d == given for d, given in zip(declared, value.shape, strict=True))
        ):
            raise self._refused(f"the shape {list(value.shape)}", "give it the shape that the graph declares")

    def write(self, step: Step) -> Any:
        return step.routed.get(self.port.name)

    def rewind(self, length: int) -> None:
        """It holds nothing."""

    def abort(self, step: Step) -> None:
        """It holds nothing."""

    def _refused(self, given: str, remedy: str) -> RoutedInputError:
        return RoutedInputError(
            f"routed input '{self.port.name}' was given {given}", why=f"the graph declares {self.port}", remedy=remedy
        )


def routed_values(pairs: RoutedPairs, inputs: Sequence[StepInput]) -> dict[str, Any]:
    """The caller's values by port.

    :param inputs: everything that the session feeds; those that are `supplied` take a value each.
    :raises RoutedInputError: a name that is given twice, then one that is missing, then one that is unknown.
    """
    values: dict[str, Any] = {}
    for name, value in pairs.items() if isinstance(pairs, Mapping) else pairs:
        if name in values:
            raise RoutedInputError(f"routed input '{name}' was given twice", remedy="give each port one value")
        values[name] = value
    wanted = {given.port.name: given for given in inputs if given.supplied}
    for name, given in wanted.items():
        if name not in values and given.port.kind != "optional":
            raise _missing(given)
    unknown = sorted(values.keys() - wanted.keys())
    if unknown:
        raise RoutedInputError(
            f"these routed inputs are not known: {', '.join(map(repr, unknown))}",
            why="ports that take a value with each step: " + (", ".join(map(repr, sorted(wanted))) or "none")
            + "; the session itself fills all others",
            remedy="use the exact names of the graph's inputs",
        )  # fmt: skip
    return values


def _missing(given: StepInput) -> RoutedInputError:
    if given.source == "inputs_embeds":
        return RoutedInputError(
            f"the embeddings for '{given.port.name}' are missing",
            why="the decoder takes embeddings instead of token ids",
            remedy=f"pass the step's embeddings as ('{given.port.name}', [1, rows, width]) in routed",
        )
    return RoutedInputError(
        f"routed input '{given.port.name}' is missing",
        why=f"nothing generates {given.port}",
        remedy=f"pass ('{given.port.name}', value) in routed, or declare the port's role in model.io",
    )
