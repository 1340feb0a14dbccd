"""How every operator of this package is called, and the precision that they compute in.

Activations are widened to float64 and rounded once, to the output's type; products with a quantized weight are made in
float32, the type that the weight is dequantized to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from tokenmill.errors import OperatorError

Array: TypeAlias = npt.NDArray[Any]
Inputs: TypeAlias = Sequence[Array | None]
Attributes: TypeAlias = Mapping[str, Any]
Outputs: TypeAlias = Sequence[Array | None]

#: `f(inputs, attributes, outputs)`: values by position with None for an omitted one, attributes as plain Python values,
#: and how many outputs are asked for. Pure: inputs are never written.
Operator: TypeAlias = Callable[[Inputs, Attributes, int], Outputs]


def given(inputs: Inputs, index: int) -> Array | None:
    """Input `index`, or None when it is omitted."""
    return inputs[index] if index < len(inputs) else None


def required(inputs: Inputs, index: int, name: str) -> Array:
    """Input `index`.

    :raises OperatorError: when it is omitted.
    """
    value = given(inputs, index)
    if value is None:
        raise OperatorError(f"input {index} ({name}) is missing", why="the operator's definition requires it")
    return value


def text(attributes: Attributes, name: str, default: str) -> str:
    """A string attribute, whether it is kept as `str` or as the bytes of the file."""
    value = attributes.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def wide(value: Array) -> npt.NDArray[np.float64]:
    return np.asarray(value).astype(np.float64)


def wide_or(value: Array | None, default: float = 0.0) -> npt.NDArray[np.float64]:
    """An optional input in float64; omitted, the neutral value of what is done with it."""
    return np.float64(default) if value is None else wide(value)  # type: ignore[return-value]


def fits(value: Array | None, name: str, *extents: int | None) -> None:
    """Check a shape that numpy would broadcast in silence; an omitted input fits.

    :param extents: one per axis, None for any.
    :raises OperatorError: naming both shapes.
    """
    if value is None:
        return
    refuse(
        value.ndim != len(extents)
        or any(want not in (None, got) for got, want in zip(value.shape, extents, strict=True)),
        f"{name} of shape {list(value.shape)}",
        f"the other inputs and the attributes require {['any' if want is None else want for want in extents]}",
        "feed inputs of one and the same step, or export again",
    )


def refuse(condition: object, what: str, why: str, remedy: str = "") -> None:
    """Refuse a variant or shape that the definition leaves out.

    :raises OperatorError: when the condition holds.
    """
    if condition:
        raise OperatorError(what, why=why, remedy=remedy)
