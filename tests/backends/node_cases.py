"""The ONNX project's own node tests: one case at a time, on any backend, against a list of known failures."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx.numpy_helper
import tokenmill
from attrs import frozen
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

KNOWN_FAILURES = Path(__file__).parent / "known_failures"


@frozen
class KnownFailure:
    """One line of a list. `may_pass` marks cases that depend on chance or on an optional package."""

    name: str
    reason: str
    may_pass: bool


def known_failures(backend: str) -> dict[str, KnownFailure]:
    """The list of a backend: `test_name  reason`, one a line; a leading `~` says that the case may also pass."""
    failures = {}
    for line in (KNOWN_FAILURES / f"{backend}.txt").read_text().splitlines():
        text = line.removeprefix("~").strip()
        if text and not text.startswith("#"):
            name, _, reason = text.partition(" ")
            failures[name] = KnownFailure(name, reason.strip(), may_pass=line.startswith("~"))
    return failures


def recorded_backends() -> list[str]:
    """Backends that have a list."""
    return sorted(path.stem for path in KNOWN_FAILURES.glob("*.txt"))


def load_cases() -> dict[str, TestCase]:
    """Every case by name, with the same random data each time."""
    state = np.random.get_state()
    np.random.seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {case.name: case for case in load_model_tests(kind="node")}
    finally:
        np.random.set_state(state)


def failure(case: TestCase, backend: str) -> str | None:
    """Run a case; the first lines of what went wrong, or None when every output is right by the case's tolerances."""
    try:
        with tokenmill.compile(case.model, backend) as graph:
            for inputs, expected in case.data_sets:
                names = [port.name for port in graph.inputs]
                outputs = graph.run(dict(zip(names, map(_array, inputs), strict=True)))
                _assert_equal([_array(value) for value in expected], list(outputs.values()), case)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
    return None


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _assert_equal(expected: Sequence[Any], given: Sequence[Any], case: TestCase) -> None:
    """`Runner.assert_similar_outputs`, which cannot compare sequences of scalars itself, on each element."""
    assert len(expected) == len(given), f"{len(given)} outputs instead of {len(expected)}"
    for wanted, found in zip(expected, given, strict=True):
        if isinstance(wanted, list):
            assert isinstance(found, list), f"a sequence was expected, not a {type(found).__name__}"
            _assert_equal(wanted, found, case)
        else:
            Runner.assert_similar_outputs([wanted], [found], case.rtol, case.atol)
