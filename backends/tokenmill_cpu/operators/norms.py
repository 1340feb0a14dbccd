"""Normalizations over the last axes, with the addition before them that exporters fuse."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from tokenmill.contracts.answers import Declined

from tokenmill_cpu.frame import Frame, address_of
from tokenmill_cpu.kernels.norms import layer_norm, rms_norm
from tokenmill_cpu.launch import Kernel
from tokenmill_cpu.operators.floats import FLOAT32, rounded, settled, widened
from tokenmill_cpu.operators.operator import Node, Operator, implements

Shape = tuple[int, ...]


class _Weight:
    """An input with one item per feature, or one that numpy broadcasts to it: kept as float32 when it is constant.

    :param position: None for one that the operator does not have.
    """

    def __init__(self, node: Node, position: int | None) -> None:
        self.position = position if position is not None and node.has_input(position) else None
        constant = node.constant(self.position) if self.position is not None else None
        self.kept = None if constant is None else widened(constant)
        if constant is not None and self.kept is not None:
            self.dtype, self.shape, self.address = constant.dtype, constant.shape, address_of(self.kept)

    def read(self, frame: Frame, inputs: Sequence[Any], shape: Shape) -> tuple[Any, int]:
        """Its type and its address, which is 0 when it is omitted and -1 when it does not fit."""
        if self.position is None:
            return None, 0
        if self.kept is not None and self.shape == shape:
            return self.dtype, self.address
        given = self.kept if self.kept is not None else inputs[self.position]
        dtype = self.dtype if self.kept is not None else given.dtype
        values = settled(frame, given)
        if values is None:
            return dtype, -1
        if values.shape != shape:
            frame.finish()
            try:
                values = np.ascontiguousarray(np.broadcast_to(values, shape))
            except ValueError:
                return dtype, -1
        return dtype, frame.hold(values)


class Normalization(Operator):
    """Outputs: the normalized rows, and by `kinds` also `mean`, `factor` and `total`, of which nothing may be wanted."""

    queues = True

    def __init__(
        self,
        node: Node,
        kernel: Kernel,
        kinds: Sequence[str],
        *,
        gamma: int,
        beta: int | None = None,
        skip: int | None = None,
        bias: int | None = None,
        epsilon: float = 1e-5,
    ) -> None:
        node.address_of(kernel)
        self._kernel = kernel
        self._axis = int(node.attributes.get("axis", -1))
        self._epsilon = float(node.attributes.get("epsilon", epsilon))
        self._skip = skip
        self._gamma, self._beta, self._bias = (_Weight(node, position) for position in (gamma, beta, bias))
        kept = [weight for weight in (self._gamma, self._beta, self._bias) if weight.kept is not None]
        self.packs = frozenset(weight.position for weight in kept if weight.position is not None)
        self.weight_bytes = sum(weight.kept.nbytes for weight in kept if weight.kept is not None)
        self._wanted = [kind if node.wants(index) else None for index, kind in enumerate(kinds, 1)]
        while self._wanted and self._wanted[-1] is None:
            self._wanted.pop()

    def run(self, frame: Frame, inputs: Sequence[Any]) -> Sequence[Any]:
        given = inputs[0]
        x, shape = settled(frame, given), given.shape
        if x is None or not given.size:
            return NotImplemented
        features = shape[self._axis :]
        width = prod(features)
        rows = given.size // width
        kind, gamma = self._gamma.read(frame, inputs, features)
        _, beta = self._beta.read(frame, inputs, features)
        _, bias = self._bias.read(frame, inputs, features)
        if gamma < 0 or beta < 0 or bias < 0:
            return NotImplemented
        y = np.empty(shape, FLOAT32)
        total = target = frame.hold(y)
        skip, skip_rows = 0, 1
        if self._skip is not None:
            added = inputs[self._skip]
            # The batch may be missing, or one for all.
            if added.shape != shape and added.shape != shape[1:] and added.shape != (1, *shape[1:]):
                return NotImplemented
            added = settled(frame, added)
            if added is None:
                return NotImplemented
            skip, skip_rows = frame.hold(added), added.size // width
        results, means, factors = [y], 0, 0
        for wanted in self._wanted:
            result: Any = None
            if wanted == "total":
                result = np.empty(shape, FLOAT32)
                total = frame.hold(result)
            elif wanted is not None:
                result = np.empty(shape[: self._axis] + (1,) * len(features), FLOAT32)
                if wanted == "mean":
                    means = frame.hold(result)
                else:
                    factors = frame.hold(result)
            results.append(result)
        frame.launch(
            self._kernel,
            frame.parts(x.size, rows),
            frame.hold(x), skip, bias, gamma, beta, target, total, means, factors, rows, width, skip_rows, self._epsilon,
        )  # fmt: skip
        results[0] = rounded(frame, y, kind)
        if "total" in self._wanted:
            results[3] = rounded(frame, results[3], given.dtype)
        return results


def _in_float32(node: Node) -> bool:
    return bool(node.attributes.get("stash_type", 1) == 1)


_OTHER_STASH = Declined("it normalizes in float32 alone", "export with stash_type 1")


# Exporters for onnxruntime write this one of com.microsoft into the standard domain.
@implements("", "SimplifiedLayerNormalization")
@implements("com.microsoft", "SimplifiedLayerNormalization")
@implements("", "RMSNormalization", since=23)
def _rms(node: Node) -> Operator | Declined:
    return Normalization(node, rms_norm, ["factor"], gamma=1) if _in_float32(node) else _OTHER_STASH


@implements("", "LayerNormalization", since=17)
def _layer(node: Node) -> Operator | Declined:
    return Normalization(node, layer_norm, ["mean", "factor"], gamma=1, beta=2) if _in_float32(node) else _OTHER_STASH


_SKIP_OUTPUTS = ("mean", "factor", "total")


@implements("com.microsoft", "SkipSimplifiedLayerNormalization")
def _skip_rms(node: Node) -> Operator:
    return Normalization(node, rms_norm, _SKIP_OUTPUTS, skip=1, gamma=2, bias=3, epsilon=1e-12)


@implements("com.microsoft", "SkipLayerNormalization")
def _skip_layer(node: Node) -> Operator:
    return Normalization(node, layer_norm, _SKIP_OUTPUTS, skip=1, gamma=2, beta=3, bias=4, epsilon=1e-12)
