"""The table of token embeddings, and the projection to logits that may share it."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from tokenmill_strategies.sources.gguf_import.blocks import BLOCK
from tokenmill_strategies.sources.gguf_import.graph_writer import MICROSOFT, GraphWriter
from tokenmill_strategies.sources.gguf_import.layers import KeptMatrix, LayerWriter


class VocabularyWriter:
    """Writes the table once, also for a model that projects to logits with it (the file then has no `output`)."""

    def __init__(self, layers: LayerWriter) -> None:
        self._layers, self._graph = layers, layers.graph
        a = layers.architecture
        self._table = layers.keep(layers.matrix("token_embd", a.vocabulary, a.hidden), "model.embed_tokens.weight")

    def embed(self, ids: str) -> str:
        """`[batch, length, hidden] float32`."""
        rows = gather_rows(self._graph, self._table, ids)
        if not self._layers.architecture.family.scaled_embedding:
            return rows
        factor = np.array(math.sqrt(self._layers.architecture.hidden), np.float32)
        return self._graph.node("Mul", [rows, self._graph.constant(factor)], "/model/embed_tokens/Mul")[0]

    def logits(self, x: str) -> None:
        """The output `logits`, `[batch, length, vocabulary] float32`."""
        layers, a = self._layers, self._layers.architecture
        table = self._table
        if layers.file.has("output.weight"):
            table = layers.keep(layers.matrix("output", a.vocabulary, a.hidden), "lm_head.weight")
        cap = a.logit_softcap
        product = layers.matmul(x, table, "/lm_head", output=None if cap else "logits")
        if cap:
            limit = self._graph.constant(np.array(cap, np.float32))
            scaled = self._graph.node("Div", [product, limit], "/lm_head/Div")
            bounded = self._graph.node("Tanh", scaled, "/lm_head/Tanh")
            self._graph.node("Mul", [*bounded, limit], "/lm_head/Mul", outputs=["logits"])
        self._graph.output("logits", TensorProto.FLOAT, ["batch_size", "sequence_length", a.vocabulary])


def gather_rows(graph: GraphWriter, table: KeptMatrix, ids: str) -> str:
    """Rows of a table, dequantized: `[..., columns] float32`."""
    if table.float_zero_points:
        return _gather_with_float_zero_points(graph, table, ids)
    codes, scales, *zero_points = table.weights
    flat = graph.constant(np.array([table.rows, table.columns * table.bits // 8], np.int64))
    name = "/model/embed_tokens"
    data = graph.node("Reshape", [codes, flat], f"{name}/Reshape")
    return graph.node(
        "GatherBlockQuantized", [*data, ids, scales, *zero_points], f"{name}/GatherBlockQuantized", domain=MICROSOFT,
        bits=table.bits, block_size=BLOCK, gather_axis=0, quantize_axis=1,
    )[0]  # fmt: skip


def _gather_with_float_zero_points(graph: GraphWriter, table: KeptMatrix, ids: str) -> str:
    """By standard operators, since `GatherBlockQuantized` takes zero points of the codes' type only."""
    name = "/model/embed_tokens"
    packed, scales, zero_points = (
        graph.node("Gather", [part, ids], f"{name}/{kind}/Gather", axis=0)[0]
        for part, kind in zip(table.weights, ("codes", "scales", "zero_points"), strict=True)
    )
    last = graph.constant(np.array([-1], np.int64))
    low = graph.node("BitwiseAnd", [packed, graph.constant(np.array(15, np.uint8))], f"{name}/BitwiseAnd")
    four = graph.constant(np.array(4, np.uint8))
    high = graph.node("BitShift", [packed, four], f"{name}/BitShift", direction="RIGHT")
    halves = [
        graph.node("Unsqueeze", [*half, last], f"{name}/{kind}/Unsqueeze")[0]
        for half, kind in ((low, "low"), (high, "high"))
    ]
    pairs = graph.node("Concat", halves, f"{name}/Concat", axis=-1)
    blocks = graph.constant(np.array([0, 0, table.columns // BLOCK, BLOCK], np.int64))
    codes = graph.node("Reshape", [*pairs, blocks], f"{name}/Reshape")
    values = graph.node("Cast", codes, f"{name}/Cast", to=TensorProto.FLOAT)
    offset = graph.node("Unsqueeze", [zero_points, last], f"{name}/zero_points/Unsqueeze")
    scale = graph.node("Unsqueeze", [scales, last], f"{name}/scales/Unsqueeze")
    shifted = graph.node("Sub", [*values, *offset], f"{name}/Sub")
    weights = graph.node("Mul", [*shifted, *scale], f"{name}/Mul_blocks")
    rows = graph.constant(np.array([0, 0, table.columns], np.int64))
    return graph.node("Reshape", [*weights, rows], f"{name}/Reshape_rows")[0]
