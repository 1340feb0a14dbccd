"""Backends against the ONNX project's own node tests. A new failure breaks this, and so does a case that now passes."""

from __future__ import annotations

import zlib

import pytest
from node_cases import failure, known_failures, load_cases, recorded_backends

#: Batches spread over processes; loading all cases takes seconds, so that a test is a batch and not a case.
BATCHES = 16

#: Cases that must pass, of 1,884.
REQUIRED = 1850


@pytest.fixture(scope="module")
def cases():
    return load_cases()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("backend", recorded_backends())
def test_node_cases_are_as_recorded(backend, batch, cases):
    known = known_failures(backend)
    news = []
    for name, case in cases.items():
        if zlib.crc32(name.encode()) % BATCHES != batch:
            continue
        reason = failure(case, backend)
        if reason is not None and name not in known:
            news.append(f"{name} fails: {reason}")
        if reason is None and name in known and not known[name].may_pass:
            news.append(f"{name} passes: take it off known_failures/{backend}.txt")
    assert not news, "\n".join(news)


@pytest.mark.parametrize("backend", recorded_backends())
def test_enough_node_cases_pass(backend, cases):
    known = known_failures(backend)
    assert set(known) <= set(cases), "cases that this version of onnx does not have"
    assert len(cases) - len(known) >= REQUIRED
