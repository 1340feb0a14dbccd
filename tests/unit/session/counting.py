"""Small decoders whose every value is a whole number, so that any order of summation gives the same bits.

Token `t` adds `t` to a running sum; the logits of a row are highest at `sum mod VOCAB`. The sum comes from a growing
past, from a recurrent state, or from both halves of the vocabulary at once. Token `POISON` makes its own row NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from attrs import define, field
from onnx import TensorProto, helper, numpy_helper
from tokenmill.config import load_config
from tokenmill.hooks.registry import default_registry
from tokenmill.model.loading import decoder_of, open_graph
from tokenmill.selection import make_routers, select_backend, select_strategies
from tokenmill.session import Session
from tokenmill.session.groups import cache_groups
from tokenmill.trace import NO_TRACE, Tracer

VOCAB, POISON, HIDDEN = 32, 31, 4


@define
class Counting:
    """Builds one. `graph()` gives the model.

    :param growing: keep the sum in a growing past `past.0.key`.
    :param recurrent: keep it in a state `past.0.state` as well.
    :param logits: shape of the logits output: `rows` [1, rows, V], `flat` [rows, V], `vector` [V] and `last` [1, 1, V] of
        the last row, `four` [1, 1, rows, V], `empty` [1, 0, V].
    :param element: of the logits and the cache.
    :param more: routed inputs that are added to the sum, by name.
    """

    growing: bool = True
    recurrent: bool = False
    logits: str = "rows"
    element: int = TensorProto.FLOAT
    logits_element: int | None = None
    embeds: bool = False
    mask: bool = False
    hidden: bool = True
    more: Sequence[str] = ()
    _nodes: list[onnx.NodeProto] = field(factory=list, init=False)
    _weights: list[onnx.TensorProto] = field(factory=list, init=False)

    def graph(self) -> onnx.ModelProto:
        value = helper.make_tensor_value_info
        inputs, outputs = [], []
        if self.embeds:
            inputs.append(value("inputs_embeds", TensorProto.FLOAT, ["batch", "rows", HIDDEN]))
            addends = self.add("ReduceMean", "inputs_embeds", self.integers(2), keepdims=1)
            ids = self.add("Cast", self.add("Squeeze", addends, self.integers(2)), to=TensorProto.INT64)
        else:
            inputs.append(value("input_ids", TensorProto.INT64, ["batch", "rows"]))
            ids = "input_ids"
            addends = self.add("Unsqueeze", self.add("Cast", ids, to=TensorProto.FLOAT), self.integers(2))
        if self.mask:
            inputs.append(value("attention_mask", TensorProto.INT64, ["batch", "total"]))
            # Ones alone change nothing.
            least = self.add("ReduceMin", self.add("Cast", "attention_mask", to=TensorProto.FLOAT), keepdims=0)
            addends = self.add("Mul", addends, least)
        for name in self.more:
            inputs.append(value(name, TensorProto.FLOAT, [1]))
            addends = self.add("Add", addends, name)
        addends = self.add("Cast", addends, to=self.element)
        sums = []
        if self.growing:
            inputs.append(value("past.0.key", self.element, ["batch", 1, "past", 1]))
            outputs.append(value("present.0.key", self.element, ["batch", 1, "total", 1]))
            sums.append(self._growing(addends, ids))
        if self.recurrent:
            inputs.append(value("past.0.state", self.element, ["batch", 2, 1]))
            outputs.append(value("present.0.state", self.element, ["batch", 2, 1]))
            sums.append(self._recurrent(addends))
        total = sums[0] if len(sums) == 1 else self.add("Max", *sums)
        total = self.add("Cast", total, to=TensorProto.FLOAT)
        outputs.insert(0, self._logits(total, ids))
        if self.hidden:
            self._nodes.append(
                helper.make_node("Expand", [total, self.integers(1, 1, HIDDEN)], ["hidden"], "hidden_rows")
            )
            outputs.insert(1, value("hidden", TensorProto.FLOAT, ["batch", "rows", HIDDEN]))
        graph = helper.make_graph(self._nodes, "counting", inputs, outputs, self._weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    def _growing(self, addends: str, ids: str) -> str:
        """`[1, rows, 1]`: sums over past and new tokens."""
        new = self.add("Unsqueeze", addends, self.integers(1))
        self._nodes.append(helper.make_node("Concat", ["past.0.key", new], ["present.0.key"], "append", axis=2))
        wide = self.add("Cast", "present.0.key", to=TensorProto.FLOAT)
        sums = self.add("CumSum", wide, self.constant(np.array(2, np.int64)))
        rows = self.add("Gather", self.add("Shape", ids), self.integers(1))
        tail = self.add("Slice", sums, self.add("Neg", rows), self.integers(1 << 40), self.integers(2))
        return self.add("Squeeze", tail, self.integers(1))

    def _recurrent(self, addends: str) -> str:
        """`[1, rows, 1]`: the state is the sum so far, twice."""
        wide = self.add("Cast", addends, to=TensorProto.FLOAT)
        state = self.add("Cast", "past.0.state", to=TensorProto.FLOAT)
        before = self.add("ReduceMax", state, self.integers(1), keepdims=1)
        sums = self.add("Add", self.add("CumSum", wide, self.constant(np.array(1, np.int64))), before)
        added = self.add("ReduceSum", wide, self.integers(1), keepdims=1)
        self._nodes.append(
            helper.make_node("Cast", [self.add("Add", state, added)], ["present.0.state"], "replace", to=self.element)
        )
        return sums

    def _logits(self, total: str, ids: str) -> onnx.ValueInfoProto:
        poison = np.zeros(VOCAB, np.float32)
        poison[POISON] = np.nan
        ill = self.add("Unsqueeze", self.add("Gather", self.constant(poison), ids), self.integers(2))
        best = self.add("Mod", total, self.constant(np.array(VOCAB, np.float32)), fmod=1)
        distance = self.add("Sub", self.constant(np.arange(VOCAB, dtype=np.float32)), best)
        scores = self.add("Add", self.add("Neg", self.add("Abs", distance)), ill)
        shape: list[Any]
        if self.logits == "flat":
            scores, shape = self.add("Squeeze", scores, self.integers(0)), ["rows", VOCAB]
        elif self.logits == "vector":
            last = self.add("Gather", scores, self.constant(np.array(-1, np.int64)), axis=1)
            scores, shape = self.add("Squeeze", last, self.integers(0)), [VOCAB]
        elif self.logits == "last":
            scores, shape = self.add("Gather", scores, self.integers(-1), axis=1), ["batch", 1, VOCAB]
        elif self.logits == "four":
            scores, shape = self.add("Unsqueeze", scores, self.integers(0)), [1, "batch", "rows", VOCAB]
        elif self.logits == "empty":
            none = self.add("Slice", scores, self.integers(0), self.integers(0), self.integers(1))
            scores, shape = none, ["batch", "none", VOCAB]
        else:
            shape = ["batch", "rows", VOCAB]
        element = self.element if self.logits_element is None else self.logits_element
        self._nodes.append(helper.make_node("Cast", [scores], ["logits"], "logits", to=element))
        return helper.make_tensor_value_info("logits", element, shape)

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"constant_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(array, name))
        return name

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))


def expected_rows(tokens: Sequence[int]) -> np.ndarray:
    """The rows that a counting decoder gives for whole numbers: `-|id - sum mod VOCAB|`."""
    best = np.cumsum(np.asarray(tokens)) % VOCAB
    return -np.abs(np.arange(VOCAB)[None, :] - best[:, None]).astype(np.float32)


def open_session(
    model: onnx.ModelProto,
    *,
    io: Mapping[str, Any] | None = None,
    backend: str = "reference",
    capacity: int = 4096,
    tracer: Tracer = NO_TRACE,
    wrap: Any = None,
    **overrides: Any,
) -> Session:
    """A session over the installed plugins.

    :param wrap: changes the compiled executable, to make a backend that errs.
    """
    io = {"hidden_output": "hidden"} if io is None and any(o.name == "hidden" for o in model.graph.output) else io
    decoder = decoder_of(open_graph(model), io=io)
    config = load_config(env={}, overrides={"backend.name": backend, **overrides})
    registry = default_registry()
    chosen, _ = select_backend(registry=registry, config=config)
    executable = chosen.compile(decoder.graph, decoder.io)
    if wrap is not None:
        executable = wrap(executable)
    strategies, _ = select_strategies(cache_groups(decoder), executable, config, registry)
    routers, _ = make_routers(registry)
    return Session(decoder, executable, strategies, routers, capacity=capacity, tracer=tracer)
