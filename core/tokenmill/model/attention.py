"""Head count and head size of a past, from the attention node that reads it.

Exporters write symbolic extents into the ports although the graph fixes them: the number of heads is an attribute of
the node, and the head size follows from the width of its query or key. The attributes and positions are those of the
ONNX operator `Attention` and of onnxruntime's published contrib operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir

#: Operators that hand the last axis of their first input on, or whose last extent is that of any input.
_LAST_AXIS_KEPT = frozenset(
    ("Cast", "Identity", "Add", "Sub", "Mul", "Div", "Clip", "LayerNormalization", "RMSNormalization",
     "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "SkipLayerNormalization", "RotaryEmbedding",
     "BiasGelu", "QuickGelu", "Dropout"),
)  # fmt: skip
_SEARCH_DEPTH = 12


def attention_extents(past: onnx_ir.Value, rank: int) -> dict[int, int]:
    """Extents by axis that the readers of a past fix; empty when they fix none.

    :param past: the graph input, `[batch, heads, length, head_size]`, or with a leading axis for key and value.
    """
    for node, index in _readers(past):
        if node.op_type == "Concat":
            found = _concat_extents(node, index, rank)
        elif rank >= 4:
            heads, head_size = _head_geometry(node, index)
            found = {axis: extent for axis, extent in ((rank - 3, heads), (rank - 1, head_size)) if extent}
        else:
            found = {}
        if found:
            return found
    return {}


def _readers(value: onnx_ir.Value, depth: int = 3) -> Iterator[tuple[onnx_ir.Node, int]]:
    for use in value.uses():
        if use.node.op_type in ("Cast", "Identity") and depth:
            yield from _readers(use.node.outputs[0], depth - 1)
        else:
            yield use.node, use.idx


def _head_geometry(node: onnx_ir.Node, index: int) -> tuple[int | None, int | None]:
    operator = node.op_type
    if operator == "GroupQueryAttention":
        heads, kv_heads = _integer(node, "num_heads"), _integer(node, "kv_num_heads")
        if _input(node, 1) is not None:
            width = _last_extent(_input(node, 1))
            return kv_heads, _divided(width, kv_heads) or _divided(_last_extent(_input(node, 0)), heads)
        packed = heads + 2 * kv_heads if heads and kv_heads else None
        return kv_heads, _divided(_last_extent(_input(node, 0)), packed)
    if operator == "Attention" and node.domain in ("", "ai.onnx"):
        kv_heads = _integer(node, "kv_num_heads")
        source = _input(node, 1 if index == 4 else 2)  # past_key, past_value
        if kv_heads:
            return kv_heads, _divided(_last_extent(source), kv_heads)
        return _static_extent(source, 1), _last_extent(source)  # rank 4: [batch, heads, length, head_size]
    if operator == "Attention":
        heads = _integer(node, "num_heads")
        sizes = node.attributes.get("qkv_hidden_sizes")
        if sizes is not None:
            return heads, _divided(int(list(sizes.as_ints())[1]), heads)
        width = _static_extent(_input(node, 1), -1)
        return heads, _divided(width, 3 * heads if heads else None)
    heads = _integer(node, "num_heads")  # MultiHeadAttention and its relatives
    return (heads, _divided(_last_extent(_input(node, 0)), heads)) if heads else (None, None)


def _concat_extents(node: onnx_ir.Node, index: int, rank: int) -> dict[int, int]:
    """A past that is written out as a concatenation has the other extents of what is appended."""
    joined = _integer(node, "axis") or 0
    joined = joined + rank if joined < 0 else joined
    found: dict[int, int] = {}
    for position, value in enumerate(node.inputs):
        if position == index or value is None or value.shape is None or len(value.shape) != rank:
            continue
        for axis, extent in enumerate(value.shape):
            # A traced batch of 1 would be taken for a promise.
            if axis not in (0, joined) and isinstance(extent, int) and extent > 0:
                found.setdefault(axis, extent)
    return found


def _last_extent(value: onnx_ir.Value | None, depth: int = _SEARCH_DEPTH) -> int | None:
    """The last extent of a value: its own, else what the node that computes it makes of its inputs."""
    if value is None or depth == 0:
        return None
    own = _static_extent(value, -1)
    if own is not None:
        return own
    node = value.producer()
    if node is None:
        return None
    if node.op_type == "MatMulNBits":
        return _integer(node, "N")
    if node.op_type in ("MatMul", "FusedMatMul", "MatMulInteger"):
        return _static_extent(_input(node, 1), -2 if _integer(node, "transB") else -1)
    if node.op_type == "Gemm":
        return _static_extent(_input(node, 1), 0 if _integer(node, "transB") else -1)
    if node.op_type == "Reshape":
        return _reshaped(_input(node, 1))
    if node.op_type in _LAST_AXIS_KEPT:
        # A broadcast operand may have a last extent of 1: the widest counts.
        extents = [_last_extent(operand, depth - 1) for operand in _operands(node)]
        return max((extent for extent in extents if extent), default=None)
    return None


def _operands(node: onnx_ir.Node) -> Sequence[onnx_ir.Value | None]:
    return node.inputs[:2] if node.op_type in ("Add", "Sub", "Mul", "Div") else node.inputs[:1]


def _reshaped(target: onnx_ir.Value | None) -> int | None:
    if target is None:
        return None
    constant = target.const_value
    producer = target.producer()
    if constant is None and producer is not None and producer.op_type == "Constant" and "value" in producer.attributes:
        constant = producer.attributes["value"].as_tensor()
    if constant is None or constant.size == 0:
        return None
    last = int(constant.numpy().reshape(-1)[-1])
    return last if last > 0 else None


def _input(node: onnx_ir.Node, index: int) -> onnx_ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _integer(node: onnx_ir.Node, name: str) -> int | None:
    attribute = node.attributes.get(name)
    return None if attribute is None or attribute.is_ref() else attribute.as_int()


def _static_extent(value: onnx_ir.Value | None, axis: int) -> int | None:
    if value is None:
        return None
    shape = value.shape if value.shape is not None or value.const_value is None else value.const_value.shape
    if shape is None or len(shape) < max(1, -axis) or axis >= len(shape):
        return None
    extent = shape[axis]
    return extent if isinstance(extent, int) and extent > 0 else None


def _divided(width: int | None, parts: int | None) -> int | None:
    return width // parts if width and parts and width % parts == 0 else None
