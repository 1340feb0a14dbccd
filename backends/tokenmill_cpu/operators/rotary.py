"""Rotary position embeddings of queries or keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenmill_cpu.frame import Frame, address_of
from tokenmill_cpu.kernels.rotary import FROM_EACH, FROM_FIRST, FROM_PLACE, turn_halves, turn_neighbours
from tokenmill_cpu.operators.floats import FLOAT32, narrowed, widened
from tokenmill_cpu.operators.operator import Node, Operator, contiguous, implements

_INT64 = np.dtype(np.int64)


class RotaryEmbedding(Operator):
    """Turns x `[batch, sequence, heads * D]` or `[batch, heads, sequence, D]`; features behind the turning ones pass.

    :param order: positions of the inputs x, cosines, sines and positions.
    :param heads: of x of rank 3; 0 takes heads of the size that the angles turn.
    """

    def __init__(self, node: Node, order: tuple[int, int, int, int], heads: int) -> None:
        self._kernel = turn_neighbours if node.attributes.get("interleaved", 0) else turn_halves
        node.address_of(self._kernel)
        self._x, self._cosine, self._sine, self._positions = order
        self._heads = heads
        self._turning = int(node.attributes.get("rotary_embedding_dim", 0))

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        given, cosine, sine = inputs[self._x], inputs[self._cosine], inputs[self._sine]
        positions = inputs[self._positions] if self._positions < len(inputs) else None
        x, shape = widened(given), given.shape
        if x is None or not given.size or not cosine.size:
            return NotImplemented
        half = cosine.shape[-1]
        if len(shape) == 3:
            batch, sequence, features = shape
            heads = self._heads or features // (2 * half)
            if heads == 0 or features % heads:
                return NotImplemented
            size = features // heads
            token_bytes, head_bytes = 4 * features, 4 * size
        elif len(shape) == 4:
            batch, heads, sequence, size = shape
            token_bytes, head_bytes = 4 * size, 4 * size * sequence
        else:
            return NotImplemented
        if 2 * half > size or (self._turning and self._turning != 2 * half) or sine.shape != cosine.shape:
            return NotImplemented
        if positions is None:
            source, rows = FROM_PLACE, batch * sequence
            if cosine.shape != (batch, sequence, half):
                return NotImplemented
        else:
            rows = cosine.shape[0]
            if positions.shape == (batch, sequence):
                source = FROM_EACH
            elif positions.size == 1 and positions.ndim < 2:
                source = FROM_FIRST
            else:
                return NotImplemented
            if positions.dtype != _INT64 or cosine.ndim != 2:
                return NotImplemented
            if cosine.dtype == FLOAT32:
                positions = contiguous(positions)
            else:
                # Of angles that must be widened, only those that are used.
                positions = np.broadcast_to(
                    positions if source == FROM_EACH else positions + np.arange(sequence), (batch, sequence)
                )
                if positions.min() < 0 or positions.max() >= rows:
                    return NotImplemented
                cosine, sine = cosine[positions], sine[positions]
                source, rows = FROM_PLACE, batch * sequence
        cosine, sine = widened(cosine), widened(sine)
        if cosine is None or sine is None:
            return NotImplemented
        y = np.empty(shape, FLOAT32)
        frame.launch(
            self._kernel,
            frame.parts(x.size, batch * sequence),
            address_of(x), address_of(y), 0 if positions is None else address_of(positions), address_of(cosine),
            address_of(sine), batch, sequence, heads, size, half, rows, token_bytes, head_bytes, source,
        )  # fmt: skip
        return (narrowed(y, given.dtype),)


@implements("com.microsoft", "RotaryEmbedding")
def _contributed(node: Node) -> Operator:
    """`scale` and `is_packed_batching` change nothing, as in onnxruntime; heads count only beside a rotary dimension."""
    attributes = node.attributes
    heads = int(attributes.get("num_heads", 0)) if attributes.get("rotary_embedding_dim", 0) else 0
    return RotaryEmbedding(node, (0, 2, 3, 1), heads)


@implements("", "RotaryEmbedding", since=23)
def _standard(node: Node) -> Operator:
    return RotaryEmbedding(node, (0, 1, 2, 3), int(node.attributes.get("num_heads", 0)))
