"""The parts of a decoder as nodes: projections, norms, the embedding, attention and the feed-forward network.

Operators and ports are those that onnxruntime-genai's exporter writes, as described in ONNX Runtime's operator
documentation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import frozen
from gguf import dequantize
from numpy.typing import NDArray
from tokenmill.contracts.sourcing import Progress
from tokenmill.errors import SourceError

from tokenmill_strategies.sources.gguf_import.architecture import Architecture
from tokenmill_strategies.sources.gguf_import.blocks import BLOCK, Blocks, read_blocks, stacked
from tokenmill_strategies.sources.gguf_import.graph_writer import MICROSOFT, GraphWriter
from tokenmill_strategies.sources.gguf_import.reading import GgufFile
from tokenmill_strategies.sources.gguf_import.report import ImportReport
from tokenmill_strategies.sources.gguf_import.rotary import Rotary

#: Activations of a matmul are rounded to int8 by blocks, as exporters ask for on the CPU.
ACCURACY_LEVEL = 4


@frozen(kw_only=True)
class KeptMatrix:
    """A matrix that has been written.

    :param weights: names of codes, scales and zero points if there are any, in the order of `MatMulNBits`.
    """

    rows: int
    columns: int
    bits: int
    weights: tuple[str, ...]
    float_zero_points: bool


class LayerWriter:
    """Writes layers of one model; every value has the shape `[batch, length, ...]`."""

    def __init__(
        self, file: GgufFile, architecture: Architecture, graph: GraphWriter, report: ImportReport, progress: Progress
    ) -> None:
        self.file, self.architecture, self.graph = file, architecture, graph
        self._report, self._progress = report, progress
        self._rotary: dict[Rotary, tuple[str, str]] = {}

    # --- weights -----------------------------------------------------------------------------------------------------

    def vector(self, name: str, size: int, stored: str) -> str:
        """A float32 vector of the file, under the name `stored`."""
        return self.graph.weight(stored, self._vector(name, size))

    def _vector(self, name: str, size: int) -> NDArray[Any]:
        tensor = self.file.tensor(name, [size])
        self._progress.advance(float(tensor.n_bytes))
        vector = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        if not np.isfinite(vector).all():
            raise SourceError(f"the tensor '{name}' has weights that are not finite", remedy="fetch the file again")
        return vector

    def matrix(self, name: str, rows: int, columns: int) -> Blocks:
        """A matrix of the file."""
        tensor = self.file.tensor(f"{name}.weight", [rows, columns])
        blocks = read_blocks(tensor)
        self._report.note(tensor, blocks)
        self._progress.advance(float(tensor.n_bytes))
        order = self._row_order(name, rows)
        return blocks if order is None else blocks.rows(order)

    def keep(self, blocks: Blocks, stored: str) -> KeptMatrix:
        """Write codes, scales and zero points."""
        parts: list[tuple[str, NDArray[Any]]] = [("codes", blocks.packed), ("scales", blocks.scales)]
        if blocks.zero_points is not None:
            parts.append(("zero_points", blocks.zero_points))
        rows, columns = blocks.codes.shape
        return KeptMatrix(
            rows=rows,
            columns=columns,
            bits=blocks.bits,
            weights=tuple(self.graph.weight(f"{stored}.{part}", value) for part, value in parts),
            float_zero_points=blocks.form[1] == "float32",
        )

    # --- parts -------------------------------------------------------------------------------------------------------

    def matmul(self, x: str, matrix: KeptMatrix, name: str, output: str | None = None) -> str:
        return self.graph.node(
            "MatMulNBits", [x, *matrix.weights], f"{name}/MatMul", outputs=1 if output is None else [output],
            domain=MICROSOFT, K=matrix.columns, N=matrix.rows, bits=matrix.bits, block_size=BLOCK,
            accuracy_level=ACCURACY_LEVEL,
        )[0]  # fmt: skip

    def projection(self, x: str, names: list[str], sizes: list[int], columns: int, stored: str) -> list[str]:
        """Products with matrices that read the same input: one node for those of one form, each its own otherwise."""
        parts = [self.matrix(name, size, columns) for name, size in zip(names, sizes, strict=True)]
        biases = [self._bias(name, size) for name, size in zip(names, sizes, strict=True)]
        if len({part.form for part in parts}) > 1:
            return [
                self._product(x, part, bias, f"{stored}.{index}")
                for index, (part, bias) in enumerate(zip(parts, biases, strict=True))
            ]
        return [self._product(x, stacked(parts), _joined(biases, sizes), stored)]

    def _product(self, x: str, blocks: Blocks, bias: NDArray[Any] | None, stored: str) -> str:
        name = _path(stored)
        y = self.matmul(x, self.keep(blocks, f"{stored}.weight"), name)
        if bias is None:
            return y
        return self.graph.node("Add", [y, self.graph.weight(f"{stored}.bias", bias)], f"{name}/Add")[0]

    def _bias(self, name: str, size: int) -> NDArray[Any] | None:
        if not self.file.has(f"{name}.bias"):
            return None
        bias, order = self._vector(f"{name}.bias", size), self._row_order(name, size)
        return bias if order is None else bias[order]

    def _row_order(self, name: str, size: int) -> NDArray[Any] | None:
        """Undoes the order in which rotated pairs are neighbours: first elements of all pairs, then second ones."""
        interleaved = self.architecture.family.interleaved and name.endswith((".attn_q", ".attn_k"))
        if not interleaved:
            return None
        rotated, head_size = self.architecture.rotary.size, self.architecture.head_size
        head = np.concatenate([np.arange(0, rotated, 2), np.arange(1, rotated, 2), np.arange(rotated, head_size)])
        return (np.arange(0, size, head_size)[:, None] + head).reshape(-1)

    def norm(self, x: str, source: str, size: int, stored: str) -> str:
        """Root-mean-square normalization along the last axis."""
        return self.graph.node(
            "SimplifiedLayerNormalization", [x, self.vector(f"{source}.weight", size, f"{stored}.weight")],
            f"{_path(stored)}/SimplifiedLayerNormalization", epsilon=self.architecture.epsilon, axis=-1, stash_type=1,
        )[0]  # fmt: skip

    def skip_norm(self, x: str, residual: str, source: str, stored: str) -> tuple[str, str]:
        """`x + residual`, normalized; and the sum."""
        name = _path(stored)
        weight = self.vector(f"{source}.weight", self.architecture.hidden, f"{stored}.weight")
        normed, total = f"{name}/output_0", f"{name}/output_3"
        self.graph.node(
            "SkipSimplifiedLayerNormalization", [residual, x, weight], f"{name}/SkipLayerNorm",
            outputs=[normed, "", "", total], domain=MICROSOFT, epsilon=self.architecture.epsilon,
        )  # fmt: skip
        return normed, total

    def rotary_tables(self, rotary: Rotary) -> tuple[str, str]:
        """Cosines and sines; layers with the same rotary embedding share them."""
        if rotary not in self._rotary:
            suffix = f"_{len(self._rotary)}" if self._rotary else ""
            cosines, sines = rotary.tables(self.architecture.context)
            self._rotary[rotary] = (
                self.graph.weight(f"cos_cache{suffix}", cosines),
                self.graph.weight(f"sin_cache{suffix}", sines),
            )
        return self._rotary[rotary]

    def attention(self, x: str, layer: int, lengths: list[str]) -> str:
        """:param lengths: last valid position of each row of the batch, and the longest length: what attention needs
        to know of the mask."""
        a, source, stored = self.architecture, f"blk.{layer}", f"model.layers.{layer}.attn"
        sizes = [a.heads * a.head_size, a.kv_heads * a.head_size, a.kv_heads * a.head_size]
        names = [f"{source}.attn_{part}" for part in "qkv"]
        qkv = self.projection(x, names, sizes, a.hidden, f"{stored}.qkv_proj")
        if self.file.has(f"{source}.attn_q_norm.weight"):
            if len(qkv) == 1:
                split = self.graph.constant(np.array(sizes, np.int64))
                qkv = self.graph.node("Split", [*qkv, split], f"{_path(stored)}/Split", outputs=3, axis=-1)
            qkv[0] = self._head_norm(qkv[0], sizes[0], f"{source}.attn_q_norm", f"{stored}.q_norm")
            qkv[1] = self._head_norm(qkv[1], sizes[1], f"{source}.attn_k_norm", f"{stored}.k_norm")
        pasts = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        presents = [f"present.{layer}.{part}" for part in ("key", "value")]
        name = f"{_path(stored)}/GroupQueryAttention"
        attended = self.graph.node(
            "GroupQueryAttention",
            [*(qkv if len(qkv) == 3 else [*qkv, "", ""]), *pasts, *lengths, *self.rotary_tables(a.rotary_of(layer))],
            name, outputs=[f"{name}/output_0", *presents], domain=MICROSOFT,
            num_heads=a.heads, kv_num_heads=a.kv_heads, scale=a.attention_scale, softcap=a.attention_softcap,
            local_window_size=a.windows[layer], do_rotary=1, rotary_interleaved=0,
        )[0]  # fmt: skip
        return self.projection(attended, [f"{source}.attn_output"], [a.hidden], sizes[0], f"{stored}.o_proj")[0]

    def _head_norm(self, x: str, size: int, source: str, stored: str) -> str:
        """Normalizes every head on its own."""
        head_size, name = self.architecture.head_size, _path(stored)
        heads = self.graph.node("Reshape", [x, self._shape(0, -1, head_size)], f"{name}/Reshape_1")[0]
        normed = self.norm(heads, source, head_size, stored)
        return self.graph.node("Reshape", [normed, self._shape(0, -1, size)], f"{name}/Reshape_2")[0]

    def _shape(self, *extents: int) -> str:
        return self.graph.constant(np.array(extents, np.int64))

    def feed_forward(self, x: str, layer: int) -> str:
        a, source, stored = self.architecture, f"blk.{layer}", f"model.layers.{layer}.mlp"
        gate = self.projection(x, [f"{source}.ffn_gate"], [a.inner], a.hidden, f"{stored}.gate_proj")[0]
        up = self.projection(x, [f"{source}.ffn_up"], [a.inner], a.hidden, f"{stored}.up_proj")[0]
        product = self.graph.node("Mul", [self._activation(gate, _path(stored)), up], f"{_path(stored)}/Mul")
        return self.projection(product[0], [f"{source}.ffn_down"], [a.hidden], a.inner, f"{stored}.down_proj")[0]

    def _activation(self, x: str, name: str) -> str:
        if self.architecture.family.activation == "gelu_tanh":
            return self.graph.node("FastGelu", [x], f"{name}/act_fn/FastGelu", domain=MICROSOFT)[0]
        sigmoid = self.graph.node("Sigmoid", [x], f"{name}/act_fn/Sigmoid")
        return self.graph.node("Mul", [x, *sigmoid], f"{name}/act_fn/Mul")[0]


def _path(stored: str) -> str:
    """A node's name from that of its weights: `model.layers.0.attn` is `/model/layers.0/attn`."""
    parts = stored.split(".")
    if parts[:2] == ["model", "layers"]:
        parts = ["model", f"layers.{parts[2]}", *parts[3:]]
    return "/" + "/".join(parts)


def _joined(biases: list[NDArray[Any] | None], sizes: list[int]) -> NDArray[Any] | None:
    if all(bias is None for bias in biases):
        return None
    return np.concatenate(
        [np.zeros(size, np.float32) if bias is None else bias for bias, size in zip(biases, sizes, strict=True)]
    )
