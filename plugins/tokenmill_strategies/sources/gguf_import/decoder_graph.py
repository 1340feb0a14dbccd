"""The whole decoder as a graph: ports, lengths from the mask, layers, logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto
from tokenmill.contracts.sourcing import Progress

from tokenmill_strategies.sources.gguf_import.architecture import Architecture
from tokenmill_strategies.sources.gguf_import.embedding import VocabularyWriter
from tokenmill_strategies.sources.gguf_import.graph_writer import GraphWriter
from tokenmill_strategies.sources.gguf_import.layers import LayerWriter
from tokenmill_strategies.sources.gguf_import.reading import GgufFile
from tokenmill_strategies.sources.gguf_import.report import ImportReport


def write_decoder(
    file: GgufFile, architecture: Architecture, directory: Path, report: ImportReport, progress: Progress
) -> None:
    """Write `model.onnx` and `model.onnx.data`.

    :raises SourceError: a tensor that is missing, left over, or of a shape or type that does not fit.
    """
    with GraphWriter(directory, file.architecture) as graph:
        layers = LayerWriter(file, architecture, graph, report, progress)
        ids = graph.input("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"])
        mask = graph.input("attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"])
        _cache_ports(graph, architecture)
        lengths = _lengths(graph, mask)
        vocabulary = VocabularyWriter(layers)
        vocabulary.logits(_layers(layers, vocabulary.embed(ids), lengths))
        file.check_all_asked()
        graph.save()


def _layers(layers: LayerWriter, x: str, lengths: list[str]) -> str:
    """Residual `x` through every layer; each addition is joined with the norm that reads its sum."""
    a, file = layers.architecture, layers.file
    normed = layers.norm(x, "blk.0.attn_norm", a.hidden, "model.layers.0.input_layernorm")
    for layer in range(a.layers):
        source, stored = f"blk.{layer}", f"model.layers.{layer}"
        y = layers.attention(normed, layer, lengths)
        if file.has(f"{source}.post_attention_norm.weight"):
            y = layers.norm(y, f"{source}.post_attention_norm", a.hidden, f"{stored}.post_attention_norm")
        normed, x = layers.skip_norm(y, x, f"{source}.ffn_norm", f"{stored}.ffn_layernorm")
        y = layers.feed_forward(normed, layer)
        if file.has(f"{source}.post_ffw_norm.weight"):
            y = layers.norm(y, f"{source}.post_ffw_norm", a.hidden, f"{stored}.post_ffn_norm")
        last = layer + 1 == a.layers
        next_norm = "output_norm" if last else f"blk.{layer + 1}.attn_norm"
        stored = "model.norm" if last else f"model.layers.{layer + 1}.input_layernorm"
        normed, x = layers.skip_norm(y, x, next_norm, stored)
    return normed


def _cache_ports(graph: GraphWriter, a: Architecture) -> None:
    for layer in range(a.layers):
        for part in ("key", "value"):
            for port, name, length in (
                (graph.input, f"past_key_values.{layer}.{part}", "past_sequence_length"),
                (graph.output, f"present.{layer}.{part}", "total_sequence_length"),
            ):
                port(name, TensorProto.FLOAT, ["batch_size", a.kv_heads, length, a.head_size])


def _lengths(graph: GraphWriter, mask: str) -> list[str]:
    """The last valid position of each row, `[batch] int32`, and the mask's extent, an int32 scalar."""
    name = "/model/attn_mask_reformat"
    one = graph.constant(np.array([1], np.int64))
    total = graph.node("ReduceSum", [mask, one], f"{name}/ReduceSum", keepdims=0)
    last = graph.node("Sub", [*total, one], f"{name}/Sub")
    shape = graph.node("Shape", [mask], f"{name}/Shape")
    extent = graph.node("Gather", [*shape, graph.constant(np.array(1, np.int64))], f"{name}/Gather", axis=0)
    return [
        graph.node("Cast", last, f"{name}/Sub/Cast", to=TensorProto.INT32)[0],
        graph.node("Cast", extent, f"{name}/Gather/Cast", to=TensorProto.INT32)[0],
    ]
