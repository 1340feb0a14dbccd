"""Operators of the ONNX project's own domains through `onnx.reference`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx.defs
import onnx_ir.serde
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import RuntimeContextError
from tokenmill.contracts.answers import Accepted, Answer, Declined
from tokenmill.contracts.fallback import HostOperator
from tokenmill.model.program import Instruction

_LOADERS = {
    "": "onnx.reference.ops",
    "ai.onnx.ml": "onnx.reference.ops.aionnxml",
    "ai.onnx.preview": "onnx.reference.ops.aionnx_preview",
    "ai.onnx.preview.training": "onnx.reference.ops.aionnx_preview_training",
}


def standard_answer(domain: str, operator: str, version: int) -> Answer:
    """Whether `onnx.reference` has an implementation, or a function body in the operator's schema."""
    if domain not in _LOADERS:
        return Declined(f"domain '{domain}' is not known here")
    try:
        loader = importlib.import_module(_LOADERS[domain]).load_op
        options = {"evaluator_cls": ReferenceEvaluator} if domain == "" else {}
        loader(domain, operator, version, **options)
    except RuntimeContextError:
        return Accepted("onnx.reference, through the function in the operator's schema")
    except Exception as error:
        if not onnx.defs.has(operator, domain):
            return Declined(f"ONNX {onnx.__version__} defines no such operator")
        return Declined(str(error).splitlines()[0] if str(error) else type(error).__name__)
    return Accepted("onnx.reference")


def bind_standard(instruction: Instruction) -> HostOperator:
    """An evaluator of this node alone.

    :raises Exception: whatever `onnx.reference` says of attributes that it cannot take.
    """
    operator = _evaluator(instruction, instruction.attributes)
    if not _caps_raw_scores(instruction):
        return operator
    uncapped = {name: value for name, value in instruction.attributes.items() if name != "softcap"}
    raw = _evaluator(instruction, uncapped)
    return lambda inputs: [*operator(inputs)[:3], raw(inputs)[3]]


def _caps_raw_scores(instruction: Instruction) -> bool:
    """`Attention` that gives its scores as they are before the soft cap, where `onnx.reference` gives them capped."""
    attributes = instruction.attributes
    asked = instruction.operator == "Attention" and instruction.domain == "" and len(instruction.outputs) > 3
    return asked and attributes.get("qk_matmul_output_mode", 0) == 0 and attributes.get("softcap", 0.0) != 0


def _evaluator(instruction: Instruction, attributes: Mapping[str, Any]) -> HostOperator:
    proto = onnx_ir.serde.serialize_node(instruction.node)
    proto.domain = instruction.domain
    kept = [attribute for attribute in proto.attribute if attribute.name in {*attributes, *instruction.bodies}]
    del proto.attribute[:]
    proto.attribute.extend(kept)
    # Inputs stay undeclared, and one output is named without a type: the evaluator then resolves functions whose bodies
    # depend on the input types when it is called, and leaves all others resolved here.
    name = next(name for name in proto.output if name)
    graph = onnx.helper.make_graph([proto], "node", [], [onnx.ValueInfoProto(name=name)])
    opsets = {"": onnx.defs.onnx_opset_version(), instruction.domain: instruction.version}
    node = ReferenceEvaluator(graph, opsets=opsets).rt_nodes_[0]
    count = len(instruction.outputs)

    def operator(inputs: Sequence[Any]) -> Sequence[Any]:
        return node.run(*inputs)[:count]

    return operator
