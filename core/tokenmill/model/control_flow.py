"""If, Loop, Scan and SequenceMap over bodies that were bound as plans of their own.

From the ONNX operator specification, every version: Scan-8 carries a batch axis, later ones do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from attrs import frozen

from tokenmill.errors import OperatorError
from tokenmill.model.host_values import describe
from tokenmill.model.program import Instruction


@frozen(eq=False)
class Body:
    """A subgraph: `run(arguments, captured)` gives its outputs."""

    run: Callable[[Sequence[Any], Sequence[Any]], list[Any]]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]


Captured = dict[str, list[Any]]
Operator = Callable[[Sequence[Any], Captured], Sequence[Any]]


def _if(instruction: Instruction, bodies: Mapping[str, Body]) -> Operator:
    def operator(inputs: Sequence[Any], captured: Captured) -> Sequence[Any]:
        name = "then_branch" if _truth(inputs[0], instruction) else "else_branch"
        return bodies[name].run((), captured[name])

    return operator


def _loop(instruction: Instruction, bodies: Mapping[str, Body]) -> Operator:
    body = bodies["body"]
    carried_count = len(body.input_names) - 2
    elements = _declared_elements(instruction)[1 + carried_count :]

    def operator(inputs: Sequence[Any], captured: Captured) -> Sequence[Any]:
        limit = None if inputs[0] is None else _whole(inputs[0], instruction)
        going = len(inputs) < 2 or inputs[1] is None or _truth(inputs[1], instruction)
        carried = list(inputs[2:])
        if len(carried) != carried_count:
            raise OperatorError(
                f"{instruction.title} got {len(carried)} loop-carried values", why=f"its body takes {carried_count}"
            )
        scanned: list[list[Any]] = [[] for _ in elements]
        for index in count():
            if not going or (limit is not None and index >= limit):
                break
            results = body.run((np.array(index, np.int64), np.array(True), *carried), captured["body"])
            going = _truth(results[0], instruction)
            carried = results[1 : 1 + carried_count]
            for collected, value in zip(scanned, results[1 + carried_count :], strict=True):
                collected.append(value)
        return [*carried, *(_stacked(*pair, 0, instruction) for pair in zip(scanned, elements, strict=True))]

    return operator


def _scan(instruction: Instruction, bodies: Mapping[str, Body]) -> Operator:
    scan = _Scan(instruction, bodies["body"])
    return scan.batched if instruction.version < 9 else scan.plain


class _Scan:
    def __init__(self, instruction: Instruction, body: Body) -> None:
        attributes = instruction.attributes
        self.instruction, self.body = instruction, body
        self.scanned_count = int(attributes["num_scan_inputs"])
        self.state_count = len(body.input_names) - self.scanned_count
        self.elements = _declared_elements(instruction)[self.state_count :]
        directions = attributes.get("scan_input_directions", attributes.get("directions"))
        self.input_reversed = directions or [0] * self.scanned_count
        self.input_axes = attributes.get("scan_input_axes") or [0] * self.scanned_count
        self.output_reversed = attributes.get("scan_output_directions") or [0] * len(self.elements)
        self.output_axes = attributes.get("scan_output_axes") or [0] * len(self.elements)

    def plain(self, inputs: Sequence[Any], captured: Captured) -> Sequence[Any]:
        states, scanned = inputs[: self.state_count], inputs[self.state_count :]
        moved = [np.moveaxis(value, axis, 0) for value, axis in zip(scanned, self.input_axes, strict=True)]
        lengths = {len(value) for value in moved}
        if len(lengths) != 1:
            raise OperatorError(
                f"{self.instruction.title} scans inputs of different lengths {sorted(lengths)}",
                why=f"inputs are {', '.join(map(describe, scanned))}, scanned along axes {self.input_axes}",
            )
        states, collected = self._iterate(states, moved, lengths.pop(), captured)
        return [*states, *self._stack(collected)]

    def batched(self, inputs: Sequence[Any], captured: Captured) -> Sequence[Any]:
        """Scan-8: a batch axis before every other, and optional lengths of the sequences; shorter ones end in zeros."""
        lengths, states, scanned = inputs[0], inputs[1 : 1 + self.state_count], inputs[1 + self.state_count :]
        longest = scanned[0].shape[1]
        batches = []
        for index in range(scanned[0].shape[0]):
            length = longest if lengths is None else int(lengths[index])
            rows = [value[index][:length] for value in scanned]
            finals, collected = self._iterate([state[index] for state in states], rows, length, captured)
            stacks = [_padded(stack, longest) for stack in self._stack(collected)]
            batches.append([*finals, *stacks])
        return [np.stack(parts) for parts in zip(*batches, strict=True)]

    def _iterate(
        self, states: Sequence[Any], scanned: Sequence[Any], length: int, captured: Captured
    ) -> tuple[list[Any], list[list[Any]]]:
        states = list(states)
        collected: list[list[Any]] = [[] for _ in self.elements]
        for step in range(length):
            rows = [
                np.asarray(value[length - 1 - step if backwards else step])
                for value, backwards in zip(scanned, self.input_reversed, strict=True)
            ]
            results = self.body.run((*states, *rows), captured["body"])
            states = results[: self.state_count]
            for values, value in zip(collected, results[self.state_count :], strict=True):
                values.append(value)
        return states, collected

    def _stack(self, collected: Sequence[list[Any]]) -> list[Any]:
        return [
            _stacked(values[::-1] if backwards else values, element, axis, self.instruction)
            for values, backwards, element, axis in zip(
                collected, self.output_reversed, self.elements, self.output_axes, strict=True
            )
        ]


def _sequence_map(instruction: Instruction, bodies: Mapping[str, Body]) -> Operator:
    body = bodies["body"]

    def operator(inputs: Sequence[Any], captured: Captured) -> Sequence[Any]:
        length = len(inputs[0])
        if any(isinstance(value, list) and len(value) != length for value in inputs):
            raise OperatorError(
                f"{instruction.title} maps sequences of different lengths",
                why=", ".join(describe(value) for value in inputs),
            )
        results: list[list[Any]] = [[] for _ in body.output_names]
        for index in range(length):
            arguments = [value[index] if isinstance(value, list) else value for value in inputs]
            for mapped, value in zip(results, body.run(arguments, captured["body"]), strict=True):
                mapped.append(value)
        return results

    return operator


#: By operator of the standard domain: binds an instruction and its bodies.
CONTROL_FLOW: dict[str, Callable[[Instruction, Mapping[str, Body]], Operator]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "SequenceMap": _sequence_map,
}


def _truth(value: Any, instruction: Instruction) -> bool:
    if not isinstance(value, (np.ndarray, np.generic)) or value.size != 1:
        raise OperatorError(f"{instruction.title} needs a single bool as condition", why=f"it got {describe(value)}")
    return bool(value.reshape(()))


def _whole(value: Any, instruction: Instruction) -> int:
    if not isinstance(value, (np.ndarray, np.generic)) or value.size != 1:
        raise OperatorError(f"{instruction.title} needs a single int64 as trip count", why=f"it got {describe(value)}")
    return int(value.reshape(()))


def _declared_elements(instruction: Instruction) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and type of each body output as declared; an unknown extent counts as 0, as it does in onnxruntime."""
    declared = []
    for value in instruction.node.attributes["body"].as_graph().outputs:
        extents = () if value.shape is None else tuple(d if isinstance(d, int) else 0 for d in value.shape.dims)
        if value.dtype is None or value.dtype.name == "UNDEFINED":
            dtype: np.dtype[Any] = np.dtype(np.float32)
        else:
            dtype = np.dtype(object) if value.dtype.name == "STRING" else np.dtype(value.dtype.numpy())
        declared.append((extents, dtype))
    return declared


def _stacked(
    values: list[Any], element: tuple[tuple[int, ...], np.dtype[Any]], axis: int, instruction: Instruction
) -> np.ndarray[Any, Any]:
    if not values:
        shape, dtype = element
        position = axis if axis >= 0 else axis + len(shape) + 1
        return np.zeros((*shape[:position], 0, *shape[position:]), dtype)
    if len({value.shape for value in values}) != 1:
        raise OperatorError(
            f"{instruction.title} cannot stack a scan output",
            why=f"its iterations gave different shapes: {', '.join(describe(value) for value in values[:8])}",
        )
    return np.stack(values, axis=axis)


def _padded(stack: np.ndarray[Any, Any], length: int) -> np.ndarray[Any, Any]:
    if len(stack) == length:
        return stack
    return np.concatenate([stack, np.zeros((length - len(stack), *stack.shape[1:]), stack.dtype)])
