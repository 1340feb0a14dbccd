"""What the numpy backend says of itself and refuses: the contract's answers."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx.parser
import pytest
from tokenmill.contracts.backend import Backend, CaptureReport, Value
from tokenmill.contracts.step import Step
from tokenmill.errors import ExecutionError, SessionClosedError
from tokenmill.model.loading import open_graph
from tokenmill.model.roles import PortPair
from tokenmill_reference.backend import create

PAIR = PortPair("past", "present")


@pytest.fixture
def executable():
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 2] past, float[m, 2] new) => (float[k, 2] present, seq(float[k, 2]) pieces)
        <float[2] w = {1, 2}> {
            scaled = Mul (new, w)
            present = Concat <axis = 0> (past, scaled)
            pieces = SequenceConstruct (past, scaled)
        }
    """)
    return create().compile(open_graph(model))


def step(want):
    return Step(np.ones((1, 1), np.int64), np.zeros(1, np.int32), "decode", want)


def test_it_is_a_backend_that_accepts_everywhere():
    backend = create()
    assert isinstance(backend, Backend) and backend.name == "reference" and backend.probe()


def test_it_declines_what_it_does_not_do(executable):
    assert "never appends" in executable.appends_in_place(PAIR).reason
    assert "logical length" in executable.tolerates_capacity("past").reason
    context = executable.open()
    with pytest.raises(ExecutionError, match="'past' and 'present'"):
        context.bind(PAIR, (8, 2), np.dtype(np.float32))
    report = context.record({}, step("token"))
    assert isinstance(report, CaptureReport) and not report and report.entries
    assert context.take_error() == 0


def test_whatever_of_the_logits_is_wanted_every_output_comes_whole(executable):
    feeds = {"past": np.zeros((1, 2), np.float32), "new": np.ones((3, 2), np.float32)}
    context = executable.open()
    for want in ("rows", "last", "token"):
        outputs = context.run(feeds, step(want))
        present = outputs["present"]
        assert isinstance(present, Value) and present.device == "cpu"
        assert present.shape == (4, 2) and present.dtype == np.float32
        assert np.from_dlpack(present).tolist() == [[0, 0], [1, 2], [1, 2], [1, 2]]
        assert [len(piece) for piece in outputs["pieces"].numpy()] == [1, 3]
    assert context.stats().runs == 3 and executable.weight_bytes == 8
    context.close()
    context.close()
    with pytest.raises(SessionClosedError):
        context.run(feeds)


def test_a_constant_cannot_be_changed_through_an_output():
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g () => (float[2] w) <float[2] w = {1, 2}> {}
    """)
    value = create().compile(open_graph(model)).open().run({})["w"].numpy()
    with pytest.raises(ValueError, match="read-only"):
        value[:] = 0


def test_the_plugin_module_imports_no_operators():
    code = """
import sys, tokenmill_reference.plugin as plugin
(descriptor,) = plugin.tokenmill_backends()
assert descriptor.name == 'reference' and descriptor.priority == 0
print([name for name in ('onnx', 'onnx_ir', 'numba', 'sympy') if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
