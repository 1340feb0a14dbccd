"""What an operator of this backend is, and how one is made from a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from attrs import frozen
from tokenmill.contracts.answers import Declined
from tokenmill.model.program import Instruction, Program

from tokenmill_cpu.frame import Frame
from tokenmill_cpu.launch import Kernel

Array = npt.NDArray[Any]


class Operator:
    """One node, prepared. Holds packed weights and addresses of kernels, and no state of a run: threads share it."""

    #: Inputs that are a past, and the output that is its present: written in place when `frame.bound` knows the past.
    appends: ClassVar[Mapping[int, int]] = {}
    #: Axis that it appends along; None when its definition fixes the one of its past.
    append_axis: int | None = None
    #: Inputs of which only the shape is read.
    reads_shape: ClassVar[frozenset[int]] = frozenset()
    #: Constant inputs that were packed: `run` does not read them, and gets None for them.
    packs: frozenset[int] = frozenset()
    #: It touches what it is given and what it gives through launches alone, or calls `frame.finish` before. Its launches may
    #: wait, so it gives all arrays that they point to, and that are not its own, to `frame.hold`.
    queues: bool = False
    #: Row `[..., i, :]` of the output depends on the same row of the first input and on constants alone.
    row_wise: ClassVar[bool] = False
    #: Memory of weights that were packed for this operator.
    weight_bytes: int = 0

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        """Compute the outputs, in order.

        :param inputs: host values, read-only; None is an omitted one.
        :returns: values that do not share memory with an input unless they are a view of it; `NotImplemented` leaves
            these inputs to the host fallback.
        """
        raise NotImplementedError


@frozen(eq=False)
class Node:
    """An instruction while it is prepared.

    :param level: which kernels to take: `tokenmill_cpu.options.LEVELS`.
    :param frame: runs kernels while nodes are prepared.
    :param address_of: compiles a kernel, or loads it from the cache, and gives its address.
    """

    instruction: Instruction
    program: Program
    level: str
    frame: Frame
    address_of: Callable[[Kernel], int]

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self.instruction.attributes

    def has_input(self, position: int) -> bool:
        inputs = self.instruction.inputs
        return position < len(inputs) and inputs[position] is not None

    def constant(self, position: int) -> Array | None:
        """The value of an input that is known before the first run; None when it is not, or is omitted."""
        slot = self.instruction.inputs[position] if self.has_input(position) else None
        if slot is None or slot not in self.program.constants or slot in self.program.inputs:
            return None
        return self.program.constant(slot)

    def wants(self, position: int) -> bool:
        """Whether anybody reads an output."""
        outputs = self.instruction.outputs
        return position < len(outputs) and outputs[position] is not None


Prepare = Callable[[Node], "Operator | Declined"]


@frozen
class Registration:
    since: int
    until: int | None
    prepare: Prepare


_REGISTERED: dict[tuple[str, str], list[Registration]] = {}


def implements(domain: str, *operators: str, since: int = 1, until: int | None = None) -> Callable[[Prepare], Prepare]:
    """Declare how nodes of these operators are prepared, from opset `since` to before `until`."""

    def register(prepare: Prepare) -> Prepare:
        for operator in operators:
            _REGISTERED.setdefault((domain, operator), []).append(Registration(since, until, prepare))
        return prepare

    return register


def preparation_of(instruction: Instruction) -> Prepare | None:
    """How a node is prepared; None when this backend has no operator for it."""
    for entry in _REGISTERED.get((instruction.domain, instruction.operator), ()):
        if entry.since <= instruction.version and (entry.until is None or instruction.version < entry.until):
            return entry.prepare
    return None


def contiguous(array: Array) -> Array:
    """The array in C order with aligned items: itself when it is already."""
    return array if array.flags.c_contiguous and array.flags.aligned else np.ascontiguousarray(array)
