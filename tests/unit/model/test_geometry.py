"""The shape of every past before the first step, and where a symbolic extent is found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from attrs import evolve
from onnx import TensorProto, helper, numpy_helper
from tokenmill.errors import PortError
from tokenmill.model.decoder import Decoder, DecoderMetadata
from tokenmill.model.geometry import StateGeometry, cache_bytes, resolve_cached_ports
from tokenmill.model.graph import Port
from tokenmill.model.growth import sequence_axis
from tokenmill.model.loading import decoder_of, load_decoder, open_graph
from tokenmill.model.roles import PortPair

ZOO = Path(__file__).parents[2] / "data" / "zoo"
MODELS = sorted(path.name for path in ZOO.iterdir() if path.is_dir())

Shape = Sequence[int | str | None]

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
SYMBOLIC_PAST: Shape = ("batch", "heads", "past_sequence", "head_size")
SYMBOLIC_PRESENT: Shape = ("batch", "heads", "total_sequence", "head_size")


def decoder(
    nodes: Sequence[onnx.NodeProto],
    weights: Sequence[onnx.TensorProto] = (),
    *,
    past: Shape | None = SYMBOLIC_PAST,
    present: Shape | None = SYMBOLIC_PRESENT,
    past_type: int = FLOAT,
    present_type: int = FLOAT,
    metadata: DecoderMetadata | None = None,
    states: bool = False,
) -> Decoder:
    """A decoder of one pair, `past_key.0` and `present_key.0`; its nodes may leave the logits to a constant."""
    made = {output for node in nodes for output in node.output}
    constants = [
        helper.make_node("Constant", [], [name], value_float=0.0)
        for name in ("logits", "present_key.0")
        if name not in made
    ]
    graph = helper.make_graph(
        [*constants, *nodes],
        "one pair",
        [
            helper.make_tensor_value_info("input_ids", INT64, ["batch", "sequence"]),
            helper.make_tensor_value_info("x", FLOAT, ["batch", "sequence", 24]),
            helper.make_tensor_value_info("past_value.0", FLOAT, None),
            helper.make_tensor_value_info("past_key.0", past_type, past),
        ],
        [
            helper.make_tensor_value_info("logits", FLOAT, None),
            helper.make_tensor_value_info("present_key.0", present_type, present),
        ],
        list(weights),
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    opened = open_graph(helper.make_model(graph, ir_version=10, opset_imports=opsets))
    pair = {"kv_inputs": ["past_key.0"], "kv_outputs": ["present_key.0"]}
    if states:
        pair = {"state_pairs": [{"input": "past_key.0", "output": "present_key.0"}]}  # type: ignore[list-item]
    bare = decoder_of(opened, io=pair)
    return bare if metadata is None else evolve(bare, metadata=metadata)


def one(found: Decoder) -> StateGeometry:
    (geometry,) = resolve_cached_ports(found)
    return geometry


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.zeros(shape, np.float32), name)


# --- exporters' models -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_metadata", [True, False], ids=["with metadata", "graph alone"])
@pytest.mark.parametrize("name", MODELS)
def test_onnxruntime_takes_an_empty_past_of_the_resolved_shape(name: str, with_metadata: bool) -> None:
    loaded = load_decoder(ZOO / name)
    if not with_metadata:
        loaded = evolve(loaded, metadata=DecoderMetadata())
    states = resolve_cached_ports(loaded)
    assert all(state.complete for state in states)
    feeds = {state.pair.past: np.zeros(state.shape, state.dtype) for state in states}  # type: ignore[arg-type]
    feeds["input_ids"] = np.array([[3, 4, 5]], np.int64)
    for port, value in (("attention_mask", np.ones((1, 3), np.int64)), ("position_ids", np.arange(3)[None])):
        if loaded.graph.input(port):
            feeds[port] = value
    session = onnxruntime.InferenceSession(str(ZOO / name / "model.onnx"), providers=["CPUExecutionProvider"])
    presents = session.run([state.pair.present for state in states], feeds)
    for state, present in zip(states, presents, strict=True):
        expected = list(state.shape)
        if state.sequence_axis is not None:
            expected[state.sequence_axis] = 3
        assert list(present.shape) == expected
        assert present.dtype == state.dtype


def test_a_hybrid_has_growing_and_fixed_states() -> None:
    *growing, conv = resolve_cached_ports(load_decoder(ZOO / "lfm2-int4"))
    assert [(state.shape, state.sequence_axis) for state in growing] == [((1, 2, 0, 16), 2)] * 2
    assert (conv.shape, conv.sequence_axis, conv.pair.fixed) == ((1, 64, 2), None, True)
    # 2 x [1, 2, 10, 16] and [1, 64, 2] float32.
    assert cache_bytes((*growing, conv), 10) == (2 * 2 * 10 * 16 + 64 * 2) * 4


# --- from the attention node -----------------------------------------------------------------------------------------


def node(operator: str, inputs: Sequence[str], domain: str = "com.microsoft", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, ["y"], name=operator, domain=domain, **attributes)


HEAD_SOURCES: dict[str, tuple[list[onnx.NodeProto], list[onnx.TensorProto], tuple[int, int]]] = {
    "GQA, packed, by its projection's weight": (
        [
            helper.make_node("MatMul", ["x", "w"], ["qkv"]),
            node("GroupQueryAttention", ["qkv", "", "", "past_key.0"], num_heads=4, kv_num_heads=2),
        ],
        [weight("w", 24, (4 + 2 * 2) * 6)],
        (2, 6),
    ),
    "GQA, by its key's MatMulNBits behind bias and rotary": (
        [
            node("MatMulNBits", ["x", "q", "s"], N=16, K=24, bits=4, block_size=32),
            helper.make_node("Add", ["y", "b"], ["biased"]),
            helper.make_node("RotaryEmbedding", ["biased", "", "", ""], ["key"], domain="com.microsoft"),
            helper.make_node(
                "GroupQueryAttention",
                ["x", "key", "key", "past_key.0"],
                ["a"],
                domain="com.microsoft",
                num_heads=4,
                kv_num_heads=2,
            ),
        ],
        [weight("b", 16), weight("q", 1), weight("s", 1)],
        (2, 8),
    ),
    "GQA, by its query's width": (
        [node("GroupQueryAttention", ["x", "past_value.0", "", "past_key.0"], num_heads=3, kv_num_heads=1)],
        [],
        (1, 8),
    ),
    "GQA behind a Cast": (
        [
            helper.make_node("Cast", ["past_key.0"], ["cast"], to=TensorProto.FLOAT16),
            node("GroupQueryAttention", ["x", "past_value.0", "", "cast"], num_heads=3, kv_num_heads=1),
        ],
        [],
        (1, 8),
    ),
    "MultiHeadAttention": (
        [node("MultiHeadAttention", ["x", "x", "x", "", "", "", "past_key.0"], num_heads=3)],
        [],
        (3, 8),
    ),
    "standard Attention": (
        [node("Attention", ["x", "x", "x", "", "past_key.0"], domain="", q_num_heads=6, kv_num_heads=2)],
        [],
        (2, 12),
    ),
    "a Gemm with a transposed weight": (
        [
            helper.make_node("Gemm", ["x", "w"], ["q"], transB=1),
            node("MultiHeadAttention", ["q", "x", "x", "", "", "", "past_key.0"], num_heads=2),
        ],
        [weight("w", 10, 24)],
        (2, 5),
    ),
}


@pytest.mark.parametrize("case", HEAD_SOURCES)
def test_heads_and_head_size_come_from_the_node_that_reads_the_past(case: str) -> None:
    nodes, weights, (heads, head_size) = HEAD_SOURCES[case]
    wrong = DecoderMetadata(num_kv_heads=77, head_size=99)
    for metadata in (None, wrong):
        assert one(decoder(nodes, weights, metadata=metadata)).shape == (1, heads, 0, head_size)


def test_a_combined_past_has_the_batch_behind_key_and_value() -> None:
    nodes = [node("Attention", ["x", "w", "b", "", "past_key.0"], num_heads=4)]
    found = decoder(
        nodes,
        [weight("w", 24, 3 * 20), weight("b", 60)],
        past=(2, "b", "h", "past", "d"),
        present=(2, "b", "h", "t", "d"),
    )
    geometry = one(found)
    assert (geometry.shape, geometry.sequence_axis) == ((2, 1, 4, 0, 5), 3)


def test_a_concatenation_shares_its_other_extents() -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "target"], ["heads"]),
        helper.make_node("Transpose", ["heads"], ["new"], perm=[0, 2, 1, 3]),
        helper.make_node("Concat", ["past_key.0", "new"], ["present_key.0"], axis=-2),
    ]
    target = numpy_helper.from_array(np.array([0, 0, 3, 8], np.int64), "target")
    found = decoder(nodes, [target])
    new = next(n for n in found.graph.model.graph if n.op_type == "Transpose").outputs[0]
    assert one(found).shape == (1, None, 0, None)
    import onnx_ir

    new.shape = onnx_ir.Shape([1, 3, 1, 8])  # as shape inference leaves it
    assert one(found).shape == (1, 3, 0, 8)


# --- from elsewhere --------------------------------------------------------------------------------------------------


def test_metadata_then_the_present_output_fill_what_no_node_says() -> None:
    stated = DecoderMetadata(num_kv_heads=2, head_size=16)
    assert one(decoder([], metadata=stated)).shape == (1, 2, 0, 16)
    assert one(decoder([], present=("batch", 2, "total", 16))).shape == (1, 2, 0, 16)


def test_an_extent_that_nothing_states_is_left_open() -> None:
    geometry = one(decoder([], past=("batch", 2, "past", "d")))
    assert geometry.shape == (1, 2, 0, None)
    assert not geometry.complete


def test_a_static_extent_is_believed() -> None:
    wrong = DecoderMetadata(num_kv_heads=9, head_size=9)
    assert one(decoder([], past=("batch", 2, "past", 16), metadata=wrong)).shape == (1, 2, 0, 16)


def test_heads_folded_into_the_batch_are_counted() -> None:
    found = decoder(
        [], past=("batch_size x num_heads", "past", 8), present=("batch_size x num_heads", "t", 8),
        metadata=DecoderMetadata(num_heads=4),
    )  # fmt: skip
    assert one(found).shape == (4, 0, 8)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((1, 4, 8, 8), (1, 4, 8, 8)), (("batch", 16, 3), (1, 16, 3)), (("b", 64), (1, 64))],
)
def test_a_recurrent_state_has_its_full_extent_at_any_rank(shape: Shape, expected: tuple[int, ...]) -> None:
    geometry = one(decoder([], past=shape, present=shape, states=True))
    assert (geometry.shape, geometry.sequence_axis) == (expected, None)
    assert geometry.nbytes(0) == geometry.nbytes(1000) == 4 * int(np.prod(expected))


@pytest.mark.parametrize(
    ("past", "present", "axis"),
    [
        (("b", 2, "past", 8), ("b", 2, "total", 8), 2),
        (("b", "h", "p", "d"), ("b", "h", "q", "d"), 2),
        (("b", 2, 8, "past"), ("b", 2, 8, "total"), 3),
        (("b", "past", 2, 8), ("b", "total", 2, 8), 1),
        (("past", "batch", 8), ("total", "batch", 8), 0),
        ((None, 2, None, None), (None, 2, None, None), 2),
        ((1, 2, 0, 8), (1, 2, None, 8), 2),
        ((1, 2, "past", 8), None, 2),
        (("b", 16, 3), ("b", 16, 3), None),
        (("b", 16, "width"), ("b", 16, "width"), None),
        ((1, 4, 8, 8), (1, 4, 8, 8), None),
    ],
)
def test_the_axis_that_grows_is_told_by_shapes(past: Shape, present: Shape | None, axis: int | None) -> None:
    def port(name: str, shape: Shape | None) -> Port:
        return Port(name, "float", None if shape is None else tuple(shape))

    assert sequence_axis(port("p", past), port("q", present)) == axis


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "no rank": ({"past": None}, "'past_key.0: float\\[\\?\\]' has no rank"),
    "rank 2": ({"past": ("batch", "past"), "present": None}, "cannot grow: keys and values have rank 3 or more"),
    "other rank": ({"present": ("batch", "total", 8)}, "differ in rank"),
    "other type": ({"present_type": TensorProto.FLOAT16}, "differ in type"),
    "other extent": ({"past": ("b", 2, "past", 8), "present": ("b", 2, "total", 4)}, "fixed extent: 8 and 4"),
    "text": ({"past_type": TensorProto.STRING, "present_type": TensorProto.STRING}, "cannot be kept in a cache"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_past_that_cannot_be_kept_is_refused(case: str) -> None:
    arguments, expected = REFUSED[case]
    with pytest.raises(PortError, match=expected):
        resolve_cached_ports(decoder([], **arguments))  # type: ignore[arg-type]


def test_a_pair_of_another_graph_is_refused() -> None:
    found = decoder([])
    other = evolve(found, io=evolve(found.io, kv_pairs=(PortPair("gone", "present_key.0"),)))
    with pytest.raises(PortError, match="the graph lacks 'gone'"):
        resolve_cached_ports(other)
