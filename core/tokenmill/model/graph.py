"""An ONNX graph with its ports, before anything is known of decoders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import ml_dtypes
import numpy as np
from attrs import define, field, frozen

if TYPE_CHECKING:
    import onnx_ir

    from tokenmill.model.program import Program

#: An extent, the name of a symbolic one, or None for an unknown one.
Dimension = int | str | None

PortKind = Literal["tensor", "sequence", "optional", "sparse"]

#: numpy's type for each ONNX element type, by the name that ONNX gives it.
NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    **{name: np.dtype(name) for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "bool": np.dtype(np.bool_),
    "complex64": np.dtype(np.complex64),
    "complex128": np.dtype(np.complex128),
    "string": np.dtype(object),
    **{
        name: np.dtype(getattr(ml_dtypes, name))
        for name in (
            "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
            "float4_e2m1fn", "int4", "uint4", "int2", "uint2",
        )
        if hasattr(ml_dtypes, name)
    },
}  # fmt: skip
NUMPY_TYPES["float8e4m3fn"] = NUMPY_TYPES["float8_e4m3fn"]
NUMPY_TYPES["float8e4m3fnuz"] = NUMPY_TYPES["float8_e4m3fnuz"]
NUMPY_TYPES["float8e5m2"] = NUMPY_TYPES["float8_e5m2"]
NUMPY_TYPES["float8e5m2fnuz"] = NUMPY_TYPES["float8_e5m2fnuz"]
NUMPY_TYPES["float8e8m0"] = NUMPY_TYPES["float8_e8m0fnu"]
NUMPY_TYPES["float4e2m1"] = NUMPY_TYPES["float4_e2m1fn"]


@frozen
class Port:
    """A graph input or output.

    :param element: ONNX element type in lower case (`float`, `float16`, `int64`, `string`, ...); empty when unknown.
    :param shape: None when the rank is unknown.
    """

    name: str
    element: str
    shape: tuple[Dimension, ...] | None
    kind: PortKind = "tensor"

    @property
    def dtype(self) -> np.dtype[Any]:
        return NUMPY_TYPES[self.element]

    def __str__(self) -> str:
        extents = "?" if self.shape is None else ", ".join("?" if d is None else str(d) for d in self.shape)
        kind = "" if self.kind == "tensor" else f"{self.kind} of "
        return f"{self.name}: {kind}{self.element or '?'}[{extents}]"


@define(eq=False)
class OnnxGraph:
    """A checked ONNX model: its ports, opsets and graph. Weights stay mapped files until a backend packs them.

    Made by `tokenmill.model.loading.open_graph`.
    """

    model: onnx_ir.Model
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    opsets: dict[str, int]
    path: Path | None = None
    _program: Program | None = field(default=None, init=False)

    def input(self, name: str) -> Port | None:
        return next((port for port in self.inputs if port.name == name), None)

    def output(self, name: str) -> Port | None:
        return next((port for port in self.outputs if port.name == name), None)

    @property
    def program(self) -> Program:
        """The graph in execution order; built once."""
        if self._program is None:
            from tokenmill.model.program import build_program

            self._program = build_program(self.model)
        return self._program
