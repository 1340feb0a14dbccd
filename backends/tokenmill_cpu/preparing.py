"""From a program to a plan: which operator each node gets, what is computed beforehand, and which constants stay."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir
from attrs import evolve
from tokenmill.contracts.answers import Declined
from tokenmill.contracts.fallback import HostFallback
from tokenmill.errors import TokenmillError, UnsupportedOperatorError
from tokenmill.model.control_flow import CONTROL_FLOW
from tokenmill.model.program import Instruction, Program

from tokenmill_cpu.call import Call, refusal
from tokenmill_cpu.frame import Frame
from tokenmill_cpu.fusing import fuse
from tokenmill_cpu.operators import Node, preparation_of
from tokenmill_cpu.plan import Branching, Plan

#: Makes a node of an instruction and its program.
MakeNode = Callable[[Instruction, Program], Node]


#: Operators that give something else each time.
_RANDOM = frozenset(
    ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
#: A value that is computed beforehand may take so much more memory than what it is made of, or so many bytes.
_GROWTH, _SMALL_BYTES = 8, 1 << 16


def build_plan(program: Program, fallback: HostFallback, make_node: MakeNode, frame: Frame) -> Plan:
    """Check that every operator exists, then prepare every node. Nodes of constants are run, in `frame`, and left out.

    :raises UnsupportedOperatorError: names all that are missing.
    """
    answers: dict[tuple[str, str, int], str] = {}
    missing = []
    for instruction in program.walk():
        if preparation_of(instruction) is None and not _is_control_flow(instruction):
            key = (instruction.domain, instruction.operator, instruction.version)
            if key not in answers:
                answer = fallback.supports(*key)
                answers[key] = answer.reason if isinstance(answer, Declined) else ""
            if answers[key]:
                missing.append(f"{instruction.title} ({answers[key]})")
    if missing:
        raise UnsupportedOperatorError(
            f"{len(missing)} node(s) use operators that neither the cpu backend nor its host fallback has: "
            + ", ".join(missing),
            remedy="export with standard ONNX operators, or install a plugin whose host fallback has them",
        )
    return _prepare(program, fallback, make_node, frame)


def _is_control_flow(instruction: Instruction) -> bool:
    return instruction.domain == "" and instruction.operator in CONTROL_FLOW


def _prepare(program: Program, fallback: HostFallback, make_node: MakeNode, frame: Frame) -> Plan:
    constants = dict(program.constants)
    program = evolve(program, constants=constants)
    calls: list[Call | Branching] = []
    for instruction in program.instructions:
        if _is_control_flow(instruction):
            bodies = {name: _prepare(body, fallback, make_node, frame) for name, body in instruction.bodies.items()}
            calls.append(Branching(instruction, bodies))
            continue
        call = _call(instruction, program, fallback, make_node)
        for position in call.operator.packs if call.operator else ():
            slot = instruction.inputs[position]
            if slot is not None:
                _release(program.constants[slot])
        known = _results(call, program, frame)
        if known is None:
            calls.append(call)
        else:
            constants.update(known)
    calls = fuse(calls, program, make_node)
    return Plan(program, tuple(calls), _kept_constants(program, calls))


def _release(tensor: onnx_ir.TensorProtocol) -> None:
    """Give back the memory that the file of a packed weight took. Who reads the weight once more maps it again."""
    if isinstance(tensor, onnx_ir.ExternalTensor):
        try:
            tensor.release()
        except BufferError:  # a view of the mapped file lives on, and gets the pages that it needs from the file
            if tensor.raw is not None and hasattr(mmap, "MADV_DONTNEED"):
                tensor.raw.madvise(mmap.MADV_DONTNEED)


def _results(call: Call, program: Program, frame: Frame) -> dict[int, onnx_ir.TensorProtocol] | None:
    """What a node gives by slot, where that is always the same; None where it is not, or is not worth its memory."""
    slots = [slot for slot in call.instruction.inputs if slot is not None]
    if not slots or call.instruction.operator in _RANDOM:
        return None
    if any(slot not in program.constants or slot in program.inputs for slot in slots):
        return None
    inputs = [None if slot is None else _read_only(program.constant(slot)) for slot in call.reads]
    try:
        with np.errstate(all="ignore"):
            results = call.run(frame, inputs)
    except TokenmillError:
        return None  # it fails where it is reached
    given = sum(program.constant(slot).nbytes for slot in slots)
    arrays = {slot: array for slot, array in zip(call.instruction.outputs, results, strict=False) if slot is not None}
    if not all(isinstance(array, np.ndarray) and array.dtype != object for array in arrays.values()):
        return None
    if frame.take_error() or sum(array.nbytes for array in arrays.values()) > max(_SMALL_BYTES, _GROWTH * given):
        return None
    return {slot: onnx_ir.tensor(array) for slot, array in arrays.items()}


def _call(instruction: Instruction, program: Program, fallback: HostFallback, make_node: MakeNode) -> Call:
    prepare = preparation_of(instruction)
    declined = "it has no such operator"
    if prepare is not None:
        try:
            operator = prepare(make_node(instruction, program))
        except TokenmillError:
            raise
        except Exception as error:
            known = [
                program.constant(slot) if slot is not None and slot in program.constants else None
                for slot in instruction.inputs
            ]
            raise refusal(instruction, known, error) from error
        if not isinstance(operator, Declined):
            return Call(program, instruction, operator, fallback)
        declined = operator.reason
    call = Call(program, instruction, None, fallback, declined)
    try:
        call.bind_host()
    except UnsupportedOperatorError as error:
        raise UnsupportedOperatorError(f"{error}; the cpu backend itself declines: {declined}") from error
    return call


def _kept_constants(program: Program, calls: Sequence[Call | Branching]) -> dict[int, Any]:
    """Constants that a run reads: a weight of which every reader keeps a packed copy is none."""
    read: set[int | None] = {*program.outputs, *program.inputs}
    for call in calls:
        read.update(call.reads)
    return {slot: _read_only(program.constant(slot)) for slot in program.constants if slot in read}


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    view = array.view()
    view.flags.writeable = False
    return view
