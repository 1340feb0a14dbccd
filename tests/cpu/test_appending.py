"""A `Concat` with a past: in bound storage it writes the new entries behind the old ones."""

from __future__ import annotations

import re

import numpy as np
import onnx.parser
import pytest
from tokenmill.assembly import select_backend
from tokenmill.contracts.answers import Declined
from tokenmill.errors import OperatorError
from tokenmill.model.loading import open_graph
from tokenmill.model.roles import PortPair

PAIR = PortPair("past", "present")
APPENDING = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 2, p, 3] past, float[b, h, n, 3] new) => (float[1, 2, t, 3] present, int64[4] was)
    {{
        {body}
        was = Shape (past)
    }}
"""
CONCAT = "present = Concat <axis = -2> (past, new)"


def compiled(body: str = CONCAT):
    backend, _ = select_backend("cpu", {"threads": 1})
    return backend.compile(open_graph(onnx.parser.parse_model(APPENDING.format(body=body))))


def entries(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def test_new_entries_are_written_behind_the_logical_length():
    executable = compiled()
    assert executable.appends_in_place(PAIR)
    context = executable.open()
    binding = context.bind(PAIR, (1, 2, 5, 3), np.dtype(np.float32))
    first, second = entries(1, 2, 3, 3), entries(1, 2, 2, 3)
    binding.write(first)
    outputs = context.run({"new": second})
    assert set(outputs) == {"was"} and outputs["was"].numpy().tolist() == [1, 2, 3, 3]
    assert binding.logical_length == 3, "the cache moves it, once the step holds"
    assert np.array_equal(binding.read(5), np.concatenate([first, second], 2))
    assert context.stats().host_fallbacks == 0


def test_entries_beyond_the_capacity_are_refused_before_anything_is_written():
    context = compiled().open()
    binding = context.bind(PAIR, (1, 2, 4, 3), np.dtype(np.float32))
    binding.write(entries(1, 2, 3, 3))
    with pytest.raises(OperatorError, match=r"Concat.*5 entries are more than the 4"):
        context.run({"new": entries(1, 2, 2, 3)})
    assert not binding.read(4)[:, :, 3].any()


def test_entries_of_another_shape_are_refused_and_not_broadcast():
    context = compiled().open()
    binding = context.bind(PAIR, (1, 2, 4, 3), np.dtype(np.float32))
    binding.write(entries(1, 2, 2, 3))
    with pytest.raises(OperatorError, match=r"\[1, 1, 1, 3\] does not continue \[1, 2, 2, 3\]"):
        context.run({"new": entries(1, 1, 1, 3)})


def test_without_bound_storage_it_joins():
    first, second = entries(1, 2, 3, 3), entries(1, 2, 2, 3)
    outputs = compiled().open().run({"past": first, "new": second})
    assert np.array_equal(outputs["present"].numpy(), np.concatenate([first, second], 2))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("present = Concat <axis = 2> (new, past)", "does not write 'present'"),
        ("present = Concat <axis = 1> (past, new)", "does not write 'present'"),
        ("twice = Add (past, past) present = Concat <axis = 2> (past, new)", "does not append in place|not write"),
        ("joined = Concat <axis = 2> (past, new) present = Neg (joined)", "does not write 'present'"),
        ("present = Concat <axis = 2> (past, new, new)", "does not write 'present'"),
    ],
)
def test_whatever_else_is_done_with_a_past_declines(body, reason):
    answer = compiled(body).appends_in_place(PAIR)
    assert isinstance(answer, Declined)
    assert re.search(reason, answer.reason)
