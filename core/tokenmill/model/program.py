"""A graph as a straight list of instructions over numbered slots: what every backend compiles from.

Names are resolved once; a subgraph is a program of its own that says which outer slots it reads. Model-local functions
are inlined before, so that an instruction is an ONNX operator and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import define, field, frozen

from tokenmill.errors import ModelError

if TYPE_CHECKING:
    import onnx_ir


@frozen(eq=False)
class Instruction:
    """One node.

    :param domain: "" is the standard domain (`ai.onnx` is written as "").
    :param version: opset version of the domain that the model imports.
    :param inputs: slots; None is an omitted input.
    :param outputs: slots; None is an output that nobody wants.
    :param attributes: python values: int, float, str, bytes, lists of them, numpy arrays for tensors; no graphs.
    :param bodies: subgraph attributes (`then_branch`, `else_branch`, `body`).
    :param frees: slots that nobody reads after this instruction.
    :param node: the node itself, for whoever needs more.
    """

    name: str
    domain: str
    operator: str
    version: int
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    attributes: Mapping[str, Any]
    bodies: Mapping[str, Program]
    frees: tuple[int, ...]
    node: onnx_ir.Node

    @property
    def title(self) -> str:
        """`domain::Operator-version 'node name'`, for messages."""
        operator = f"{self.domain}::{self.operator}" if self.domain else self.operator
        return f"{operator}-{self.version} '{self.name}'"


@define(eq=False)
class Program:
    """Instructions in topological order.

    :param inputs: slot of each graph input, by position.
    :param constants: slots of initializers and Constant nodes, in a subgraph also of those around it that it reads.
        `constant(slot)` gives the array.
    :param captures: `(outer slot, inner slot)` of other values that a subgraph reads from the program around it.
    :param reads: instructions that read each slot, by position; graph outputs not counted.
    """

    input_names: tuple[str, ...]
    inputs: tuple[int, ...]
    output_names: tuple[str, ...]
    outputs: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    constants: Mapping[int, onnx_ir.TensorProtocol]
    captures: tuple[tuple[int, int], ...]
    slot_names: tuple[str, ...]
    opsets: Mapping[str, int]
    _arrays: dict[int, np.ndarray[Any, Any]] = field(factory=dict, init=False)

    def constant(self, slot: int) -> np.ndarray[Any, Any]:
        """A constant as an array; strings as `object`. Large weights are views of mapped files: not kept here."""
        tensor = self.constants[slot]
        if tensor.nbytes > 1 << 16 if tensor.dtype.name != "STRING" else False:
            return host_array(tensor)
        if slot not in self._arrays:
            self._arrays[slot] = host_array(tensor)
        return self._arrays[slot]

    @property
    def reads(self) -> dict[int, list[int]]:
        readers: dict[int, list[int]] = {}
        for index, instruction in enumerate(self.instructions):
            for slot in dict.fromkeys(instruction_reads(instruction)):
                readers.setdefault(slot, []).append(index)
        return readers

    def walk(self) -> Iterator[Instruction]:
        """Every instruction, those of subgraphs included."""
        for instruction in self.instructions:
            yield instruction
            for body in instruction.bodies.values():
                yield from body.walk()


def instruction_reads(instruction: Instruction) -> Iterator[int]:
    """Slots of the enclosing program that an instruction reads, its bodies' captures included."""
    yield from (slot for slot in instruction.inputs if slot is not None)
    for body in instruction.bodies.values():
        yield from (outer for outer, _ in body.captures)


def host_array(tensor: onnx_ir.TensorProtocol) -> np.ndarray[Any, Any]:
    """A tensor as numpy sees it: strings as `object` arrays of `str`."""
    if tensor.dtype.name == "STRING":
        data = [
            item.decode("utf-8") if isinstance(item, bytes) else item for item in tensor.numpy().reshape(-1).tolist()
        ]
        return np.array(data, dtype=object).reshape(tuple(tensor.shape))
    array = np.asarray(tensor.numpy())
    # onnx-ir spells the byte order out, in a type that equals numpy's own and is another object: callers compare with `is`.
    own = np.dtype(array.dtype.type)
    return array.view(own) if own == array.dtype else array


def build_program(model: onnx_ir.Model) -> Program:
    """Lay a model's graph out as a program. Inlines the model's own functions first (the model is changed).

    :raises ModelError: a graph with a cycle or an undefined value, or functions that call each other in a circle.
    """
    if model.functions:
        _inline(model)
    opsets = {_domain(domain): version for domain, version in model.graph.opset_imports.items()}
    return _Layout(model.graph, opsets, outer=None).program()


def _inline(model: onnx_ir.Model) -> None:
    from onnx_ir.passes.common import InlinePass
    from onnx_ir.traversal import RecursiveGraphIterator

    for function in model.functions.values():
        # A function may import other opset versions than the graph. Its nodes keep theirs, each by itself, so that the
        # pass finds nothing to object to.
        for node in RecursiveGraphIterator(function):
            if node.version is None:
                node.version = function.opset_imports.get(node.domain)
        function.opset_imports.update(model.opset_imports)
    try:
        InlinePass()(model)
    except Exception as error:
        raise ModelError(
            "the model's functions cannot be inlined",
            why=str(error),
            remedy="inline them with onnx.inliner, or export again",
        ) from error


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


class _Layout:
    """Assigns slots to the values of one graph; a value of an enclosing graph becomes a capture."""

    def __init__(self, graph: onnx_ir.Graph, opsets: Mapping[str, int], outer: _Layout | None) -> None:
        self.graph, self.opsets, self.outer = graph, opsets, outer
        self.slots: dict[onnx_ir.Value, int] = {}
        self.names: list[str] = []
        self.constants: dict[int, onnx_ir.TensorProtocol] = {}
        self.captures: dict[int, int] = {}
        self.fed = set(graph.inputs)
        self.local = self.fed | set(graph.initializers.values())
        self.local.update(output for node in graph for output in node.outputs)

    def slot(self, value: onnx_ir.Value) -> int:
        if value not in self.slots:
            self.slots[value] = len(self.names)
            self.names.append(value.name or "")
            if value not in self.local:
                self._capture(value)
        return self.slots[value]

    def _capture(self, value: onnx_ir.Value) -> None:
        if self.outer is None:
            raise ModelError(
                f"value '{value.name}' is read but neither a graph input, an initializer nor any node's output",
                remedy="check the model with onnx.checker and export it again",
            )
        constant = self.outer.constant(value)
        if constant is None:
            self.captures[self.outer.slot(value)] = self.slots[value]
        else:
            self.constants[self.slots[value]] = constant

    def constant(self, value: onnx_ir.Value) -> onnx_ir.TensorProtocol | None:
        """What a value of this graph or one around it always is. An initializer that is an input too may be fed."""
        if value in self.local:
            slot = self.slots.get(value)
            return None if slot is None or value in self.fed else self.constants.get(slot)
        return None if self.outer is None else self.outer.constant(value)

    def program(self) -> Program:
        graph = self.graph
        inputs = tuple(self.slot(value) for value in graph.inputs)
        for value in graph.initializers.values():
            if value.const_value is not None:
                self.constants[self.slot(value)] = value.const_value
        drafts = []
        try:
            graph.sort()
        except ValueError as error:
            raise ModelError(f"graph '{graph.name}' has no order of execution", why=str(error)) from error
        for node in graph:
            if node.op_type == "Constant" and _domain(node.domain) == "":
                self.constants[self.slot(node.outputs[0])] = _constant_tensor(node)
                continue
            drafts.append(self._draft(node))
        outputs = tuple(self.slot(value) for value in graph.outputs)
        return Program(
            input_names=tuple(value.name or "" for value in graph.inputs),
            inputs=inputs,
            output_names=tuple(value.name or "" for value in graph.outputs),
            outputs=outputs,
            instructions=_with_frees(drafts, keep={*outputs, *self.constants}),
            constants=self.constants,
            captures=tuple(self.captures.items()),
            slot_names=tuple(self.names),
            opsets=self.opsets,
        )

    def _draft(self, node: onnx_ir.Node) -> dict[str, Any]:
        inputs = tuple(None if value is None else self.slot(value) for value in node.inputs)
        attributes, bodies = {}, {}
        for name, attribute in node.attributes.items():
            if attribute.type.name == "GRAPH":
                bodies[name] = _Layout(attribute.as_graph(), self.opsets, outer=self).program()
            else:
                attributes[name] = _python_value(attribute)
        domain = _domain(node.domain)
        return {
            "name": node.name or "",
            "domain": domain,
            "operator": node.op_type,
            "version": node.version or self.opsets.get(domain, 1),
            "inputs": inputs,
            "outputs": tuple(self.slot(value) if value.name else None for value in node.outputs),
            "attributes": attributes,
            "bodies": bodies,
            "node": node,
        }


def _with_frees(drafts: list[dict[str, Any]], keep: set[int]) -> tuple[Instruction, ...]:
    """Give each slot back at its last reader, or where it is written when nobody reads it."""
    last: dict[int, int] = {}
    for index, draft in enumerate(drafts):
        for slot in (*draft["inputs"], *draft["outputs"]):
            if slot is not None:
                last[slot] = index
        for body in draft["bodies"].values():
            last.update((outer, index) for outer, _ in body.captures)
    frees: list[list[int]] = [[] for _ in drafts]
    for slot, index in last.items():
        if slot not in keep:
            frees[index].append(slot)
    return tuple(Instruction(**draft, frees=tuple(free)) for draft, free in zip(drafts, frees, strict=True))


def _constant_tensor(node: onnx_ir.Node) -> onnx_ir.TensorProtocol:
    import onnx_ir

    ((name, attribute),) = node.attributes.items()
    if name in ("value", "sparse_value"):
        return attribute.value
    value = attribute.value
    if name.startswith("value_string"):
        data = [value] if name == "value_string" else list(value)
        raw = [item.encode() if isinstance(item, str) else item for item in data]
        return onnx_ir.StringTensor(np.array(raw, dtype=object).reshape(() if name == "value_string" else -1))
    kind = np.int64 if name.startswith("value_int") else np.float32
    return onnx_ir.tensor(np.array(value, dtype=kind))


def _python_value(attribute: onnx_ir.Attr) -> Any:
    kind = attribute.type.name
    if kind == "TENSOR":
        return host_array(attribute.as_tensor())
    if kind in ("INTS", "FLOATS", "STRINGS"):
        return list(attribute.value)
    if kind == "TENSORS":
        return [host_array(tensor) for tensor in attribute.value]
    return attribute.value
