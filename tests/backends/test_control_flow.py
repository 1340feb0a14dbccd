"""If, Loop, Scan and SequenceMap on every backend, against onnxruntime on the same graph."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import tokenmill
from node_cases import recorded_backends
from tokenmill.errors import OperatorError

pytestmark = pytest.mark.parametrize("backend", recorded_backends())


def parsed(text, opset=17, ir_version=8):
    model = onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>\n{text}')
    onnx.checker.check_model(model)
    return model


def both(model, backend, **feeds):
    """Outputs of the backend, after they were found equal to onnxruntime's."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = dict(zip([output.name for output in session.get_outputs()], session.run(None, feeds), strict=True))
    with tokenmill.compile(model, backend) as graph:
        given = graph.run(feeds)
    assert list(given) == list(expected)
    for name, value in expected.items():
        assert_same(given[name], value)
    return given


def assert_same(given, expected):
    if isinstance(expected, list):
        assert isinstance(given, list) and len(given) == len(expected)
        for one, other in zip(given, expected, strict=True):
            assert_same(one, other)
        return
    assert given.dtype == expected.dtype and given.shape == expected.shape
    if given.dtype == object:
        assert given.tolist() == expected.tolist()
    else:
        # Short sums of small float32 numbers: a few units in the last place when the order differs.
        np.testing.assert_allclose(given, expected, rtol=1e-6, atol=1e-6)


RUNNING = """
    g (int64 trips, bool go, float[n] start, float[n] step) => (float[n] final, float[k, n] history) {
        scale = Constant <value_float = 0.5> ()
        final, history = Loop (trips, go, start) <
            body = b (int64 i, bool c, float[n] x) => (bool more, float[n] y, float[n] seen) {
            limit = Constant <value_float = 6.0> ()
            total = ReduceSum <keepdims = 0> (x)
            more = Less (total, limit)
            half = Mul (step, scale)
            y = If (more) <
                then_branch = t () => (float[n] up) { up = Add (x, half) },
                else_branch = e () => (float[n] down) { down = Sub (x, step) }>
            seen = Identity (x)
        }>
    }
"""


@pytest.mark.parametrize("trips", [0, 1, 3, 50])
def test_loop_with_nested_if_reads_values_of_both_scopes_around_it(backend, trips):
    result = both(
        parsed(RUNNING), backend,
        trips=np.array(trips), go=np.array(True), start=np.ones(3, np.float32), step=np.array([1, 2, 3], np.float32),
    )  # fmt: skip
    assert len(result["history"]) == (trips if trips < 3 else len(result["history"]))


def test_loop_whose_condition_is_false_at_once_gives_its_start_and_an_empty_history(backend):
    result = both(
        parsed(RUNNING), backend,
        trips=np.array(9), go=np.array(False), start=np.ones(3, np.float32), step=np.ones(3, np.float32),
    )  # fmt: skip
    assert result["history"].shape[0] == 0 and result["final"].tolist() == [1, 1, 1]


def test_zero_iterations_keep_static_extents_of_the_scan_output(backend):
    model = parsed("""
        g (int64 trips, float[2, 3] x) => (int64[k, 2, 3] out) {
            yes = Constant <value = bool {1}> ()
            out = Loop (trips, yes) <body = b (int64 i, bool c) => (bool more, int64[2, 3] row) {
                more = Identity (c)
                row = Cast <to = 7> (x)
            }>
        }
    """)
    assert both(model, backend, trips=np.array(0), x=np.ones((2, 3), np.float32))["out"].shape == (0, 2, 3)
    assert both(model, backend, trips=np.array(2), x=np.ones((2, 3), np.float32))["out"].shape == (2, 2, 3)


def test_loop_without_a_trip_count_ends_by_its_condition(backend):
    model = parsed("""
        g (int64 start) => (int64 final) {
            yes = Constant <value = bool {1}> ()
            final = Loop (, yes, start) <body = b (int64 i, bool c, int64 x) => (bool more, int64 y) {
                two = Constant <value_int = 2> ()
                bound = Constant <value_int = 1000> ()
                y = Mul (x, two)
                more = Less (y, bound)
            }>
        }
    """)
    assert both(model, backend, start=np.array(3))["final"] == 1536


def test_loop_carries_a_sequence(backend):
    model = parsed("""
        g (int64 trips, float[n] x) => (seq(float[m]) rows, int64 count, float[p] joined) {
            yes = Constant <value = bool {1}> ()
            empty = SequenceEmpty <dtype = 1> ()
            rows = Loop (trips, yes, empty) <
                body = b (int64 i, bool c, seq(float[m]) held) => (bool more, seq(float[m]) longer) {
                more = Identity (c)
                one = Constant <value_ints = [1]> ()
                zero = Constant <value_ints = [0]> ()
                next = Add (i, one)
                piece = Slice (x, zero, next)
                longer = SequenceInsert (held, piece)
            }>
            count = SequenceLength (rows)
            joined = ConcatFromSequence <axis = 0> (rows)
        }
    """)
    result = both(model, backend, trips=np.array(3), x=np.arange(5, dtype=np.float32))
    assert result["joined"].tolist() == [0, 0, 1, 0, 1, 2] and result["count"] == 3


def test_branches_may_differ_in_shape(backend):
    model = parsed("""
        g (bool first, float[n] a, float[m] b) => (float[k] out, float[k] twice) {
            out, inner = If (first) <
                then_branch = t () => (float[p] q, float[p] o) { q = Identity (a) o = Neg (a) },
                else_branch = e () => (float[p] r, float[p] s) { r = Abs (b) s = Identity (b) }>
            twice = Add (inner, inner)
        }
    """)
    for first in (True, False):
        both(model, backend, first=np.array(first), a=np.ones(2, np.float32), b=-np.ones(4, np.float32))


SCAN = """
    g (float[2] start, float[a, 2] x, float[2, a] y) => (float[2] final, float[p, q] sums, float[r, s] products) {{
        gain = Constant <value_float = 2.0> ()
        final, sums, products = Scan <num_scan_inputs = 2, {attributes},
            body = b (float[2] state, float[2] row, float[2] column) => (float[2] next, float[2] sum, float[2] both) {{
                scaled = Mul (row, gain)
                next = Add (state, scaled)
                sum = Add (next, column)
                both = Mul (row, column)
            }}> (start, x, y)
    }}
"""


@pytest.mark.parametrize(
    "attributes",
    [
        "scan_input_axes = [0, 1]",
        "scan_input_axes = [0, 1], scan_input_directions = [1, 0]",
        "scan_input_axes = [0, -1], scan_input_directions = [0, 1], scan_output_directions = [1, 0]",
        "scan_input_axes = [0, 1], scan_output_axes = [1, -1]",
        "scan_input_axes = [0, 1], scan_output_axes = [1, 0], scan_output_directions = [1, 1]",
    ],
)
@pytest.mark.parametrize("length", [1, 4])
def test_scan_along_axes_in_directions(backend, attributes, length):
    values = np.arange(4 * length, dtype=np.float32)
    x, y = values[: 2 * length].reshape(length, 2), values[2 * length :].reshape(2, length)
    both(parsed(SCAN.format(attributes=attributes)), backend, start=np.ones(2, np.float32), x=x, y=y)


def test_scan_over_nothing_keeps_its_state_and_stacks_nothing(backend):
    """The oracle is the specification: onnxruntime ends the process with a division by zero here."""
    model = parsed(SCAN.format(attributes="scan_input_axes = [0, 1], scan_output_axes = [1, 0]"))
    empty = np.zeros((0, 2), np.float32)
    with tokenmill.compile(model, backend) as graph:
        result = graph.run(start=np.ones(2, np.float32), x=empty, y=empty.T)
    assert result["final"].tolist() == [1, 1]
    assert result["sums"].shape == (2, 0) and result["products"].shape == (0, 2)


def test_scan_8_runs_each_sequence_of_a_batch_to_its_own_length(backend):
    model = parsed("""
        g (int64[2] lengths, float[2, 1] start, float[2, 3, 1] x) => (float[2, 1] final, float[2, 3, 1] sums) {
            final, sums = Scan <num_scan_inputs = 1, body = b (float[1] s, float[1] row) => (float[1] t, float[1] u) {
                t = Add (s, row)
                u = Identity (t)
            }> (lengths, start, x)
        }
    """, opset=8, ir_version=3)  # fmt: skip
    result = both(
        model, backend,
        lengths=np.array([3, 2]), start=np.zeros((2, 1), np.float32), x=np.arange(6, dtype=np.float32).reshape(2, 3, 1),
    )  # fmt: skip
    assert result["final"].tolist() == [[3], [7]]
    assert result["sums"].tolist() == [[[0], [1], [3]], [[3], [7], [0]]]


def test_sequence_map_over_two_sequences_and_a_captured_tensor(backend):
    model = parsed("""
        g (float[n] a, float[m] b, float[1] scale) => (seq(float[k]) sums) {
            first = SequenceConstruct (a, b)
            second = SequenceConstruct (b, a)
            sums = SequenceMap <body = s (float[k] x, float[l] y) => (float[p] z) {
                joined = Concat <axis = 0> (x, y)
                z = Mul (joined, scale)
            }> (first, second)
        }
    """)
    a, b, scale = np.ones(2, np.float32), np.arange(3, dtype=np.float32), np.array([3], np.float32)
    with tokenmill.compile(model, backend) as graph:
        sums = graph.run(a=a, b=b, scale=scale)["sums"]
    assert_same(sums, [np.concatenate([a, b]) * 3, np.concatenate([b, a]) * 3])


def test_a_function_with_control_flow_inside_is_inlined(backend):
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[n] x, bool up) => (float[n] y) {
            y = local.Step <by = 2.5> (x, up)
        }
        <domain: "local", opset_import: ["" : 17]>
        Step <by> (x, up) => (y) {
            amount = Constant <value_float: float = @by> ()
            y = If (up) <then_branch = t () => (float[n] p) { p = Add (x, amount) },
                         else_branch = e () => (float[n] q) { q = Sub (x, amount) }>
        }
    """)
    for up in (True, False):
        both(model, backend, x=np.ones(3, np.float32), up=np.array(up))


def test_a_condition_that_is_no_single_bool_names_the_node(backend):
    model = parsed("""
        g (bool[n] go, float[n] x) => (float[n] y) {
            y = If (go) <
                then_branch = t () => (float[n] p) { p = Abs (x) },
                else_branch = e () => (float[n] q) { q = Neg (x) }>
        }
    """)
    with tokenmill.compile(model, backend) as graph:
        with pytest.raises(OperatorError, match=r"If-17.*bool\[2\]"):
            graph.run(go=np.array([True, False]), x=np.ones(2, np.float32))
        assert graph.run(go=[True], x=-np.ones(1, np.float32))["y"].tolist() == [1]


def test_scan_inputs_of_different_lengths_are_refused(backend):
    graph = tokenmill.compile(parsed(SCAN.format(attributes="scan_input_axes = [0, 1]")), backend)
    with pytest.raises(OperatorError, match=r"Scan-17.*\[2, 3\]"):
        graph.run(start=np.ones(2, np.float32), x=np.ones((2, 2), np.float32), y=np.ones((2, 3), np.float32))
