"""The host operators that every backend can fall back on: value types, earlier versions, errors, threads."""

from __future__ import annotations

import threading

import ml_dtypes
import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
from onnx import helper
from tokenmill.contracts.answers import Accepted, Declined
from tokenmill.errors import ModelError, OperatorError, UnsupportedOperatorError
from tokenmill.model.program import build_program
from tokenmill_reference.fallback import create

rng = np.random.default_rng(0)


def normal(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def node_model(operator, version, inputs, outputs=1, domain="", **attributes):
    """A model of one node; None is an omitted input."""
    names = ["" if value is None else f"i{index}" for index, value in enumerate(inputs)]
    node = helper.make_node(
        operator, names, [f"o{index}" for index in range(outputs)], "tested", domain=domain, **attributes
    )
    ports = [onnx.ValueInfoProto(name=name) for name in names if name]
    for port, value in zip(ports, [value for value in inputs if value is not None], strict=True):
        if isinstance(value, np.ndarray):
            element = helper.np_dtype_to_tensor_dtype(value.dtype) if value.dtype != object else onnx.TensorProto.STRING
            port.CopyFrom(helper.make_tensor_value_info(port.name, element, value.shape))
    graph = helper.make_graph([node], "g", ports, [onnx.ValueInfoProto(name=name) for name in node.output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, version)], ir_version=8)


def instruction(model):
    (made,) = build_program(onnx_ir.serde.deserialize_model(model)).instructions
    return made


def call(operator, version, inputs, outputs=1, domain="", **attributes):
    return create().bind(instruction(node_model(operator, version, inputs, outputs, domain, **attributes)))(inputs)


def against_onnxruntime(operator, version, inputs, outputs=1, **attributes):
    model = node_model(operator, version, inputs, outputs, **attributes)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {f"i{index}": value for index, value in enumerate(inputs) if value is not None}
    given = create().bind(instruction(model))(inputs)
    for one, other in zip(given, session.run(None, feeds), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        # float32 sums of some dozens of products of normal numbers, in another order and with another exp and tanh.
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


# --- earlier versions, and operators computed here ------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize(("version", "axis"), [(7, None), (7, 3), (11, None), (11, -2), (12, 0), (13, None), (13, 1)])
def test_softmax_family_sees_a_matrix_before_opset_13(operator, version, axis):
    attributes = {} if axis is None else {"axis": axis}
    against_onnxruntime(operator, version, [normal(2, 3, 4, 5)], **attributes)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("operator", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_operators(operator, gates, direction):
    length, batch, width, hidden, count = 5, 2, 3, 4, 2 if direction == "bidirectional" else 1
    outputs = 3 if operator == "LSTM" else 2
    weights = [normal(count, gates * hidden, width), normal(count, gates * hidden, hidden)]
    attributes = {"hidden_size": hidden, "direction": direction}
    against_onnxruntime(operator, 14, [normal(length, batch, width), *weights], outputs, **attributes)
    starts = [normal(count, batch, hidden) for _ in range(outputs - 1)]
    peepholes = [normal(count, 3 * hidden)] if operator == "LSTM" else []
    inputs = [normal(length, batch, width), *weights, normal(count, 2 * gates * hidden), np.array([5, 3], np.int32)]
    against_onnxruntime(operator, 14, [*inputs, *starts, *peepholes], outputs, **attributes)
    if (
        operator != "LSTM"
    ):  # whose cell state onnxruntime leaves unclipped before its activation, unlike the specification
        against_onnxruntime(operator, 14, [*inputs, *starts], outputs, **attributes, clip=0.7)
    if operator == "GRU":
        against_onnxruntime(operator, 14, [*inputs, *starts], outputs, **attributes, linear_before_reset=1)


def test_recurrent_activations_take_their_own_parameters():
    attributes = {"activations": ["HardSigmoid", "LeakyRelu", "Softsign"], "activation_alpha": [0.3, 0.1]}
    weights = [normal(1, 16, 3), normal(1, 16, 4)]
    against_onnxruntime(
        "LSTM", 14, [normal(5, 2, 3), *weights], 3, hidden_size=4, activation_beta=[0.4], **attributes
    )  # fmt: skip


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_dequantize_linear_before_opset_19(axis, dtype):
    x = rng.integers(0, 100, (3, 3)).astype(dtype)
    against_onnxruntime("DequantizeLinear", 13, [x, normal(3), np.array([1, 2, 3], dtype)], axis=axis)
    against_onnxruntime("DequantizeLinear", 10, [x, np.array(0.1, np.float32), np.array(3, dtype)])
    against_onnxruntime("DequantizeLinear", 13, [x, np.array(0.1, np.float32)])


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [[1, 1, 2, 2], [1, 1, 2, 3]])
def test_upsample(mode, scales):
    x = normal(2, 3, 4, 5)
    against_onnxruntime("Upsample", 7, [x], mode=mode, scales=[float(scale) for scale in scales])
    against_onnxruntime("Upsample", 9, [x, np.array(scales, np.float32)], mode=mode)
    against_onnxruntime("Resize", 10, [x, np.array([1, 1, 1.5, 0.7], np.float32)], mode=mode)


@pytest.mark.parametrize(
    ("shape", "kernel", "attributes"),
    [
        ((1, 4, 5), (4, 2, 3), {"group": 2, "strides": [2]}),
        ((2, 4, 5, 5), (4, 3, 3, 3), {"strides": [2, 2], "output_padding": [1, 1], "pads": [1, 1, 1, 1]}),
        ((1, 2, 4, 5), (2, 3, 3, 3), {"dilations": [2, 1], "strides": [2, 3], "output_shape": [10, 14]}),
        ((1, 2, 4, 5), (2, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ((1, 2, 4, 5), (2, 3, 3, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
        ((1, 2, 3, 3, 3), (2, 1, 2, 2, 2), {"pads": [1, 0, 0, 0, 1, 0]}),
    ],
)
def test_transposed_convolution(shape, kernel, attributes):
    against_onnxruntime("ConvTranspose", 11, [normal(*shape), normal(*kernel)], **attributes)
    channels = kernel[1] * attributes.get("group", 1)
    against_onnxruntime("ConvTranspose", 11, [normal(*shape), normal(*kernel), normal(channels)], **attributes)


def test_other_operators_of_this_package():
    x = normal(2, 6, 4, 5)
    against_onnxruntime("BatchNormalization", 9, [x, normal(6), normal(6), normal(6), normal(6) ** 2])
    against_onnxruntime("Scatter", 9, [normal(3, 3), np.array([[0, 1], [2, 0]]), normal(2, 2)], axis=1)
    against_onnxruntime("GroupNormalization", 18, [x, normal(2), normal(2)], num_groups=2)
    against_onnxruntime("GroupNormalization", 21, [x, normal(6), normal(6)], num_groups=2)
    against_onnxruntime("Gelu", 20, [x], approximate="none")
    against_onnxruntime("Gelu", 20, [x], approximate="tanh")
    against_onnxruntime("Erf", 13, [x])
    against_onnxruntime("GlobalLpPool", 7, [x], p=3)
    regions = np.array([[0, 1, 2, 8, 7], [1, 0, 0, 21, 19], [0, 3, 3, 4, 4]], np.float32)
    against_onnxruntime("MaxRoiPool", 7, [normal(2, 3, 10, 12), regions], pooled_shape=[3, 2], spatial_scale=0.5)


@pytest.mark.parametrize(("operator", "function"), [("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply)])
def test_broadcasting_before_opset_7_aligns_at_an_axis(operator, function):
    a, b = normal(2, 3, 4, 5), normal(3, 4)
    (result,) = call(operator, 6, [a, b], broadcast=1, axis=1)
    np.testing.assert_array_equal(result, function(a, b[:, :, None]))


def test_multinomial_draws_by_the_given_probabilities():
    probabilities = np.array([[0.1, 0.2, 0.7]])
    (drawn,) = call("Multinomial", 7, [np.log(probabilities).astype(np.float32)], sample_size=20_000, seed=1.0)
    assert drawn.dtype == np.int32 and drawn.shape == (1, 20_000)
    shares = np.bincount(drawn[0], minlength=3) / drawn.size
    # Five standard deviations of a share of 20,000 draws: 5 * sqrt(0.25 / 20000) < 0.018.
    np.testing.assert_allclose(shares, probabilities[0], atol=0.018)


# --- value types ----------------------------------------------------------------------------------------------------


def test_sequences_are_lists():
    a, b = normal(2), normal(3)
    assert call("SequenceConstruct", 17, [a, b])[0][1] is b
    (longer,) = call("SequenceInsert", 17, [[a], b, np.array(0)])
    assert [len(item) for item in longer] == [3, 2]
    assert call("SequenceLength", 17, [[a, b, a]])[0] == 3
    assert call("SequenceAt", 17, [[a, b], np.array(-1)])[0].tolist() == b.tolist()
    (parts,) = call("SplitToSequence", 17, [normal(4, 2), np.array([1, 3])], axis=0)
    assert [part.shape for part in parts] == [(1, 2), (3, 2)]
    assert call("SequenceEmpty", 17, [], dtype=1) == [[]]


def test_optionals_are_their_element_or_none():
    a = normal(2)
    assert call("Optional", 18, [a])[0] is a
    assert call("OptionalHasElement", 18, [None])[0].tolist() is False
    assert call("OptionalHasElement", 18, [[a]])[0].tolist() is True
    assert call("OptionalGetElement", 18, [[a]]) == [[a]]
    with pytest.raises(OperatorError, match="no value"):
        call("OptionalGetElement", 18, [None])


def test_strings_are_object_arrays():
    words = np.array(["käse", "brot", ""], dtype=object)
    (joined,) = call("StringConcat", 20, [words, np.array(["!", "?", "."], dtype=object)])
    assert joined.dtype == object and joined.tolist() == ["käse!", "brot?", "."]
    (matches,) = call("RegexFullMatch", 20, [words], pattern="b.*|")
    assert matches.tolist() == [False, True, True]
    pieces, counts = call("StringSplit", 20, [np.array(["a b c", "d"], dtype=object)], outputs=2)
    assert counts.tolist() == [3, 1] and pieces.tolist() == [["a", "b", "c"], ["d", "", ""]]
    (numbers,) = call("Cast", 17, [np.array(["1.5", "-2"], dtype=object)], to=onnx.TensorProto.FLOAT)
    assert numbers.tolist() == [1.5, -2]
    assert call("Gather", 17, [words, np.array([1, 0])])[0].tolist() == ["brot", "käse"]


@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        ("BFLOAT16", ml_dtypes.bfloat16),
        ("FLOAT8E4M3FN", ml_dtypes.float8_e4m3fn),
        ("FLOAT8E4M3FNUZ", ml_dtypes.float8_e4m3fnuz),
        ("FLOAT8E5M2", ml_dtypes.float8_e5m2),
        ("FLOAT8E5M2FNUZ", ml_dtypes.float8_e5m2fnuz),
        ("INT4", ml_dtypes.int4),
        ("UINT4", ml_dtypes.uint4),
        ("FLOAT4E2M1", ml_dtypes.float4_e2m1fn),
    ],
)
def test_small_types_are_ml_dtypes_there_and_back(element, dtype):
    exact = np.array([0, 1, 2, 3, 4, 6], np.float32)  # representable in every one of them
    (small,) = call("Cast", 23, [exact], to=getattr(onnx.TensorProto, element))
    assert small.dtype == np.dtype(dtype)
    (back,) = call("Cast", 23, [small], to=onnx.TensorProto.FLOAT)
    assert back.dtype == np.float32 and back.tolist() == exact.tolist()
    (shaped,) = call("Reshape", 23, [small, np.array([2, 3])])
    assert shaped.dtype == np.dtype(dtype) and shaped.shape == (2, 3)


def test_bfloat16_products_stay_bfloat16_and_are_rounded_once():
    a, b = normal(3, 4).astype(ml_dtypes.bfloat16), normal(4, 2).astype(ml_dtypes.bfloat16)
    (product,) = call("MatMul", 17, [a, b])
    assert product.dtype == np.dtype(ml_dtypes.bfloat16)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    # Exact products, summed in float32 and rounded once to 8 bits: half a unit in the last place, and a little.
    bound = 2.0**-8 * abs(exact) + 1e-5
    assert (abs(product.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4, np.int8, np.uint8])
def test_blocks_of_a_weight_are_dequantized(dtype):
    values = rng.integers(0, 8, (8, 6))
    scales, zeros = np.abs(normal(2, 6)), rng.integers(0, 4, (2, 6))
    (result,) = call(
        "DequantizeLinear", 21, [values.astype(dtype), scales, zeros.astype(dtype)], axis=0, block_size=4
    )  # fmt: skip
    expected = (values - np.repeat(zeros, 4, axis=0)).astype(np.float32) * np.repeat(scales, 4, axis=0)
    np.testing.assert_array_equal(result, expected)


# --- what is offered and what is refused ----------------------------------------------------------------------------


def test_control_flow_and_unknown_operators_are_declined_with_a_reason():
    fallback = create()
    assert isinstance(fallback.supports("", "MatMul", 17), Accepted)
    assert isinstance(fallback.supports("ai.onnx.ml", "Scaler", 3), Accepted)
    for operator in ("If", "Loop", "Scan"):
        assert "sub-plan" in str(fallback.supports("", operator, 17))
    assert isinstance(fallback.supports("", "NoSuchOperator", 17), Declined)
    answer = fallback.supports("some.vendor", "Secret", 1)
    assert isinstance(answer, Declined) and "some.vendor" in answer.reason


def test_binding_an_unknown_operator_names_it():
    with pytest.raises(UnsupportedOperatorError, match=r"some\.vendor::Secret-1 'tested'"):
        call("Secret", 1, [normal(2)], domain="some.vendor")


def test_inputs_that_do_not_fit_are_reported_with_node_shapes_and_types():
    with pytest.raises(OperatorError, match=r"MatMul-17 'tested'.*float32\[2, 3\], float32\[4, 5\]"):
        call("MatMul", 17, [normal(2, 3), normal(4, 5)])
    with pytest.raises(OperatorError, match=r"Gather-17 'tested'.*int64\[1\]"):
        call("Gather", 17, [normal(2), np.array([7])])


def test_a_missing_attribute_is_reported_when_the_node_is_bound():
    with pytest.raises(ModelError, match=r"Cast-17 'tested'.*to"):
        create().bind(instruction(node_model("Cast", 17, [normal(2)])))


def test_overflow_and_division_by_zero_are_results_and_no_warnings():
    with np.errstate(all="raise"):
        (quotient,) = call("Div", 17, [np.ones(2, np.float32), np.zeros(2, np.float32)])
    assert np.isinf(quotient).all()


def test_one_bound_operator_serves_several_threads():
    x, w, r = normal(6, 2, 3), normal(2, 16, 3), normal(2, 16, 4)
    model = node_model("LSTM", 14, [x, w, r], 3, hidden_size=4, direction="bidirectional")
    operator = create().bind(instruction(model))
    inputs = [normal(6, 2, 3) for _ in range(4)]
    expected = [operator([value, w, r])[0] for value in inputs]
    wrong = []

    def repeat(index):
        for _ in range(20):
            if not np.array_equal(operator([inputs[index], w, r])[0], expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=repeat, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
