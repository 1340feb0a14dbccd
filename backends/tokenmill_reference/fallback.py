"""Leaf operators on the host, offered to every backend: looked up once, called often."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tokenmill.contracts.answers import Accepted, Answer, Declined
from tokenmill.contracts.fallback import HostOperator
from tokenmill.errors import ModelError, OperatorError, TokenmillError, UnsupportedOperatorError
from tokenmill.model.control_flow import CONTROL_FLOW
from tokenmill.model.host_values import describe
from tokenmill.model.program import Instruction

from tokenmill_reference.contrib import operators as contrib_operators
from tokenmill_reference.standard import bind_standard, standard_answer
from tokenmill_reference.standard_own import own_operator

#: `f(inputs, attributes, number of outputs asked for)`.
PlainOperator = Callable[[Sequence[Any], Mapping[str, Any], int], Sequence[Any]]


class ReferenceFallback:
    """Three sources, in this order: `contrib`, this package's own standard operators, `onnx.reference`."""

    def __init__(self) -> None:
        self._contrib: Mapping[tuple[str, str], PlainOperator] = contrib_operators()
        self._answers: dict[tuple[str, str, int], Answer] = {}

    def supports(self, domain: str, operator: str, version: int) -> Answer:
        key = (domain, operator, version)
        if key not in self._answers:
            self._answers[key] = self._answer(*key)
        return self._answers[key]

    def _answer(self, domain: str, operator: str, version: int) -> Answer:
        if domain == "" and operator in CONTROL_FLOW:
            return Declined("control flow is run by the backend itself, as a sub-plan")
        if self._plain(domain, operator, version) is not None:
            return Accepted("numpy")
        return standard_answer(domain, operator, version)

    def _plain(self, domain: str, operator: str, version: int) -> PlainOperator | None:
        return self._contrib.get((domain, operator)) or own_operator(domain, operator, version)

    def bind(self, instruction: Instruction) -> HostOperator:
        """Prepare one node: its implementation and attributes are resolved here.

        :raises UnsupportedOperatorError: an operator without an implementation.
        :raises ModelError: attributes that the operator does not take.
        """
        answer = self.supports(instruction.domain, instruction.operator, instruction.version)
        if isinstance(answer, Declined):
            raise UnsupportedOperatorError(f"{instruction.title} has no host implementation", why=answer.reason)
        plain = self._plain(instruction.domain, instruction.operator, instruction.version)
        if plain is not None:
            return _guarded(instruction, _with_attributes(plain, instruction))
        try:
            return _guarded(instruction, bind_standard(instruction))
        except Exception as error:
            raise ModelError(
                f"{instruction.title} cannot be prepared",
                why=f"{type(error).__name__}: {error}",
                remedy="check the node's attributes with onnx.checker, and export again",
            ) from error


def create() -> ReferenceFallback:
    """Factory named by the descriptor."""
    return ReferenceFallback()


def _with_attributes(plain: PlainOperator, instruction: Instruction) -> HostOperator:
    attributes, outputs = instruction.attributes, len(instruction.outputs)
    return lambda inputs: plain(inputs, attributes, outputs)


def _guarded(instruction: Instruction, operator: HostOperator) -> HostOperator:
    def call(inputs: Sequence[Any]) -> Sequence[Any]:
        try:
            # Overflow, division by zero and NaN are results in ONNX, not warnings.
            with np.errstate(all="ignore"):
                return [np.asarray(value) if isinstance(value, np.generic) else value for value in operator(inputs)]
        except OperatorError as error:
            why = f"{error.what}: {error.why}" if error.why else error.what
            raise OperatorError(_refusal(instruction, inputs), why=why, remedy=error.remedy) from error
        except TokenmillError:
            raise
        except Exception as error:
            raise OperatorError(_refusal(instruction, inputs), why=_reason(error)) from error

    return call


def _refusal(instruction: Instruction, inputs: Sequence[Any]) -> str:
    return f"{instruction.title} cannot take {', '.join(describe(value) for value in inputs) or 'no inputs'}"


def _reason(error: BaseException) -> str:
    """The innermost cause: onnx.reference wraps the error that says something."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"
