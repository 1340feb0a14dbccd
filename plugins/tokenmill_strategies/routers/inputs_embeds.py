"""Embeddings in the place of token ids: `[batch, rows, width]`, given by the caller."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from attrs import frozen
from tokenmill.contracts.routing import StepInput
from tokenmill.contracts.step import Step
from tokenmill.errors import PortError, RoutedInputError
from tokenmill.model.graph import Port
from tokenmill.model.roles import IoSpec

_FLOATS = {np.dtype(kind) for kind in (np.float32, np.float16, ml_dtypes.bfloat16)}


class InputsEmbeds:
    """Claims the port whose role is `inputs_embeds_input`."""

    name = "inputs_embeds"

    def __init__(self, options: Any = None) -> None:
        """Takes no options."""

    def claim(self, port: Port, io: IoSpec) -> StepInput | None:
        """:raises PortError: a port without a static width, or of a type that is no float of 16 or 32 bits."""
        if port.name != io.inputs_embeds_input:
            return None
        width = port.shape[-1] if port.shape else None
        if not isinstance(width, int) or width <= 0 or len(port.shape or ()) not in (2, 3):
            raise PortError(
                f"'{port}' does not say how wide an embedding is",
                why="[batch, rows, width] or [rows, width] with a static width is needed",
                remedy="export it with a static last extent",
            )
        if port.element not in ("float", "float16", "bfloat16"):
            raise PortError(f"'{port}' cannot carry embeddings", why="float32, float16 or bfloat16 is needed")
        return Embeddings(port, width)


@frozen(eq=False)
class Embeddings:
    """Takes `[rows x width]`, `[rows, width]` or `[1, rows, width]`, in any of the float types, and converts to the port's."""

    port: Port
    width: int

    source = "inputs_embeds"
    supplied = True

    def prepare(self, step: Step) -> None:
        given = step.routed.get(self.port.name)
        if not isinstance(given, np.ndarray) or given.dtype not in _FLOATS:
            found = f"{given.dtype.name}{list(given.shape)}" if isinstance(given, np.ndarray) else type(given).__name__
            raise RoutedInputError(
                f"embeddings '{self.port.name}' are {found}", why="an array of float32, float16 or bfloat16 is needed"
            )
        if given.size == 0 or given.size % self.width or (given.ndim > 1 and given.shape[-1] != self.width):
            raise RoutedInputError(
                f"embeddings '{self.port.name}' have the shape {list(given.shape)}",
                why=f"one embedding has {self.width} values: a multiple of it that is not 0 is needed",
            )
        if given.size != step.rows * self.width or given.ndim > 3 or (given.ndim == 3 and given.shape[0] != 1):
            raise RoutedInputError(
                f"embeddings '{self.port.name}' have the shape {list(given.shape)}, of {given.size // self.width} tokens",
                why=f"the step has {step.rows} tokens",
                remedy="give one embedding for each token",
            )

    def write(self, step: Step) -> npt.NDArray[Any]:
        given = np.asarray(step.routed[self.port.name])
        flat = len(self.port.shape or ()) == 2
        shape = (step.rows, self.width) if flat else (1, step.rows, self.width)
        return given.reshape(shape).astype(self.port.dtype, copy=False)

    def rewind(self, length: int) -> None:
        """It holds nothing."""

    def abort(self, step: Step) -> None:
        """It holds nothing."""
