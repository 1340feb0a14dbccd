"""Small decoders in the forms that exporters and quantizers write, built node by node.

One layer, two heads, a plain cache of `Concat(past, new)`: `input_ids [1, rows]`, `past.key` and `past.value`
`[1, heads, past, head_size]` give `logits [1, rows, vocab]` and the presents.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS, HEAD_SIZE, VOCAB, BLOCK = 2, 32, 96, 32
WIDTH = HEADS * HEAD_SIZE
CACHE = ("key", "value")


class GraphUnderConstruction:
    """Collects nodes and weights. `element` is the float type of activations."""

    def __init__(self, element: int = TensorProto.FLOAT) -> None:
        self.element = element
        self.dtype = helper.tensor_dtype_to_np_dtype(element)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(7)

    def constant(self, array: np.ndarray, element: int | None = None) -> str:
        name = f"constant_{len(self.weights)}"
        if element in (TensorProto.INT4, TensorProto.UINT4):
            tensor = helper.make_tensor(name, element, array.shape, array.reshape(-1).tolist())
        else:
            tensor = numpy_helper.from_array(np.ascontiguousarray(array), name)
        self.weights.append(tensor)
        return name

    def add(self, operator: str, *inputs: str, domain: str = "", outputs: int = 1, **attributes: object):
        names = [f"{operator}_{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(
            helper.make_node(operator, inputs, names, f"{operator}_{len(self.nodes)}", domain=domain, **attributes)
        )
        return names[0] if outputs == 1 else names

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def random(self, rows: int, columns: int) -> np.ndarray:
        """A weight `[rows, columns]` that keeps the scale of what it multiplies."""
        return (self._rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)


#: `f(graph, input, weight [K, N]) -> output`: how a form multiplies by a weight.
Multiply = Callable[[GraphUnderConstruction, str, np.ndarray], str]


def plain(graph: GraphUnderConstruction, value: str, weight: np.ndarray) -> str:
    return graph.add("MatMul", value, graph.constant(weight.astype(graph.dtype)))


def block_dequantized(bits: int) -> Multiply:
    """`DequantizeLinear` of int4 or int8 blocks along K, then `MatMul`."""

    def multiply(graph: GraphUnderConstruction, value: str, weight: np.ndarray) -> str:
        codes, scales = _symmetric_blocks(weight, bits)
        element = TensorProto.INT4 if bits == 4 else TensorProto.INT8
        stored = graph.constant(codes.astype(np.int8), element)
        floats = graph.add("DequantizeLinear", stored, graph.constant(scales), axis=0, block_size=BLOCK)
        return graph.add("MatMul", value, floats)

    return multiply


def dynamically_quantized(graph: GraphUnderConstruction, value: str, weight: np.ndarray) -> str:
    """`DynamicQuantizeLinear` of the activation, `MatMulInteger` with int8 weights, and the scales afterwards."""
    scale = np.float32(np.abs(weight).max() / 127)
    codes = graph.constant(np.rint(weight / scale).astype(np.int8))
    quantized, activation_scale, zero_point = graph.add("DynamicQuantizeLinear", value, outputs=3)
    product = graph.add("MatMulInteger", quantized, codes, zero_point)
    floats = graph.add("Cast", product, to=TensorProto.FLOAT)
    return graph.add("Mul", floats, graph.add("Mul", activation_scale, graph.constant(np.array(scale, np.float32))))


def matmul_nbits(graph: GraphUnderConstruction, value: str, weight: np.ndarray) -> str:
    """`MatMulNBits` with 4 bits; N rows of K / 32 blocks of 16 bytes."""
    codes, scales = _symmetric_blocks(weight, 4)
    unsigned = (codes + 8).astype(np.uint8).T.reshape(weight.shape[1], -1, BLOCK)
    packed = unsigned[..., 0::2] | unsigned[..., 1::2] << 4
    return graph.add(
        "MatMulNBits", value, graph.constant(packed), graph.constant(scales.T.astype(graph.dtype).reshape(-1)),
        domain="com.microsoft", K=weight.shape[0], N=weight.shape[1], bits=4, block_size=BLOCK,
    )  # fmt: skip


def _symmetric_blocks(weight: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes `[K, N]` and scales `[K / 32, N]`."""
    largest = 2 ** (bits - 1) - 1
    blocks = weight.reshape(-1, BLOCK, weight.shape[1])
    scales = (np.abs(blocks).max(axis=1) / largest).astype(np.float32)
    return np.rint(blocks / scales[:, None]).reshape(weight.shape), scales


def _layer(
    graph: GraphUnderConstruction, multiply: Multiply, past: dict[str, str] | None
) -> tuple[str, dict[str, str]]:
    """From `input_ids` to logits and presents; without a past, the cache begins here."""
    hidden = graph.add("Gather", graph.constant(graph.random(VOCAB, WIDTH).astype(graph.dtype)), "input_ids")
    heads = {}
    for role in ("query", *CACHE):
        projected = multiply(graph, hidden, graph.random(WIDTH, WIDTH))
        split = graph.add("Reshape", projected, graph.integers(0, 0, HEADS, HEAD_SIZE))
        heads[role] = graph.add("Transpose", split, perm=[0, 2, 1, 3])
    present = {role: graph.add("Concat", past[role], heads[role], axis=2) if past else heads[role] for role in CACHE}
    scores = graph.add("MatMul", heads["query"], graph.add("Transpose", present["key"], perm=[0, 1, 3, 2]))
    scaled = graph.add("Mul", scores, graph.constant(np.array(HEAD_SIZE**-0.5, graph.dtype)))
    masked = graph.add("Where", _causal(graph, heads["query"], present["key"]), scaled, _lowest(graph))
    mixed = graph.add("MatMul", graph.add("Softmax", masked, axis=-1), present["value"])
    joined = graph.add("Reshape", graph.add("Transpose", mixed, perm=[0, 2, 1, 3]), graph.integers(0, 0, WIDTH))
    residual = graph.add("Add", hidden, multiply(graph, joined, graph.random(WIDTH, WIDTH)))
    return multiply(graph, residual, graph.random(WIDTH, VOCAB)), present


def _causal(graph: GraphUnderConstruction, query: str, key: str) -> str:
    """`[rows, keys] bool`: a row sees its own key and earlier ones."""
    rows, keys = (graph.add("Gather", graph.add("Shape", value), graph.constant(np.array(2))) for value in (query, key))
    zero, one = graph.constant(np.array(0)), graph.constant(np.array(1))
    positions = graph.add("Range", graph.add("Sub", keys, rows), keys, one)
    return graph.add(
        "LessOrEqual", graph.add("Range", zero, keys, one), graph.add("Unsqueeze", positions, graph.integers(1))
    )


def _lowest(graph: GraphUnderConstruction) -> str:
    return graph.constant(np.array(np.finfo(graph.dtype).min, graph.dtype))


def decoder(multiply: Multiply, element: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """A decoder with past in one of the forms."""
    graph = GraphUnderConstruction(element)
    logits, present = _layer(graph, multiply, {role: f"past.{role}" for role in CACHE})
    _rename(graph, {logits: "logits", **{present[role]: f"present.{role}" for role in CACHE}})
    return _model(graph.nodes, graph.weights, element)


def merged_decoder() -> onnx.ModelProto:
    """Both a decoder with past and one without, behind `use_cache_branch` in one `If`."""
    branches = {}
    weights: list[onnx.TensorProto] = []
    for attribute, past in (("then_branch", {role: f"past.{role}" for role in CACHE}), ("else_branch", None)):
        graph = GraphUnderConstruction()
        logits, present = _layer(graph, plain, past)
        names = [logits, *present.values()]
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
        branches[attribute] = helper.make_graph(graph.nodes, attribute, [], outputs)
        weights = graph.weights
        _keep_apart(branches[attribute], attribute, {weight.name for weight in weights})
    node = helper.make_node(
        "If", ["use_cache_branch"], ["logits", "present.key", "present.value"], "merged", **branches
    )
    # Both branches draw the same weights in the same order, and share them as the outer graph's initializers.
    flag = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    return _model([node], weights, TensorProto.FLOAT, flag)


def _keep_apart(graph: onnx.GraphProto, prefix: str, shared: set[str]) -> None:
    """Value names of subgraphs must not shadow each other."""
    outer = {*shared, "input_ids", *(f"past.{role}" for role in CACHE)}
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [name if name in outer else f"{prefix}/{name}" for name in names]
    for output in graph.output:
        output.name = f"{prefix}/{output.name}"


def _rename(graph: GraphUnderConstruction, names: dict[str, str]) -> None:
    for node in graph.nodes:
        for listed in (node.input, node.output):
            listed[:] = [names.get(name, name) for name in listed]


def _model(
    nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto], element: int, *more: onnx.ValueInfoProto
) -> onnx.ModelProto:
    def cache(side: str, length: str) -> list[onnx.ValueInfoProto]:
        shape = [1, HEADS, length, HEAD_SIZE]
        return [helper.make_tensor_value_info(f"{side}.{role}", element, shape) for role in CACHE]

    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "rows"])
    logits = helper.make_tensor_value_info("logits", element, [1, "rows", VOCAB])
    inputs = [ids, *cache("past", "past_length"), *more]
    outputs = [logits, *cache("present", "total_length")]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(model)
    return model
