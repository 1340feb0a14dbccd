"""Which standard operators are computed here and not by `onnx.reference`, by opset version."""

from __future__ import annotations

from tokenmill_reference.standard_earlier import EARLIER, Operator
from tokenmill_reference.standard_missing import MISSING
from tokenmill_reference.standard_recurrent import RECURRENT


def own_operator(domain: str, operator: str, version: int) -> Operator | None:
    """The implementation for an opset version of the standard domain, when there is one here."""
    if domain != "":
        return None
    candidates = (*EARLIER, *MISSING, *RECURRENT)
    return next((f for name, since, until, f in candidates if name == operator and since <= version <= until), None)
