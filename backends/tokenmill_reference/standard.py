"""Operators of the ONNX project's own domains through `onnx.reference`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
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
    proto = onnx_ir.serde.serialize_node(instruction.node)
    proto.domain = instruction.domain
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
