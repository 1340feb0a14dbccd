"""RNN, GRU and LSTM, every direction, activation and layout, from the ONNX operator specification."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen

Array = np.ndarray[Any, Any]
Inputs = Sequence[Any]
Attributes = Mapping[str, Any]
Operator = Callable[[Inputs, Attributes, int], Sequence[Any]]
Activation = Callable[[Array], Array]

#: A step of one direction: from what the input contributes and the states before, to the states after, output first.
Cell = Callable[[Array, tuple[Array, ...]], tuple[Array, ...]]


@frozen(eq=False)
class _Weights:
    """One direction: `w [gates * hidden, input]`, `r [gates * hidden, hidden]`, biases `[gates * hidden]`."""

    r: Array
    r_bias: Array
    peephole: Array | None
    attributes: Attributes
    activations: Sequence[Activation]


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


#: Function of x, alpha and beta; the defaults of alpha and beta, None where the function takes none.
_ACTIVATIONS: dict[str, tuple[Callable[[Array, float, float], Array], float | None, float | None]] = {
    "sigmoid": (lambda x, a, b: _sigmoid(x), None, None),
    "tanh": (lambda x, a, b: np.tanh(x), None, None),
    "relu": (lambda x, a, b: np.maximum(x, 0), None, None),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), None, None),
    "softplus": (lambda x, a, b: np.log1p(np.exp(x)), None, None),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: np.where(x >= 0, x, a * x), 0.01, None),
    "thresholdedrelu": (lambda x, a, b: np.where(x >= a, x, 0), 1.0, None),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "elu": (lambda x, a, b: np.where(x >= 0, x, a * (np.exp(x) - 1)), 1.0, None),
}


def _activations(attributes: Attributes, defaults: Sequence[str], directions: int) -> list[Activation]:
    """Alpha and beta are taken, in order, by the functions that have one."""
    alphas, betas = iter(attributes.get("activation_alpha") or ()), iter(attributes.get("activation_beta") or ())
    clip = attributes.get("clip")
    return [
        _activation(name.lower(), alphas, betas, clip)
        for name in attributes.get("activations") or [*defaults] * directions
    ]


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float], clip: float | None) -> Activation:
    function, alpha, beta = _ACTIVATIONS[name]
    a = 0.0 if alpha is None else next(alphas, alpha)
    b = 0.0 if beta is None else next(betas, beta)
    if clip is None:
        return lambda x: function(x, a, b)
    return lambda x: function(np.clip(x, -clip, clip), a, b)


def _rnn_cell(weights: _Weights) -> Cell:
    (f,) = weights.activations

    def step(given: Array, states: tuple[Array, ...]) -> tuple[Array, ...]:
        return (f(given + states[0] @ weights.r.T + weights.r_bias),)

    return step


def _gru_cell(weights: _Weights) -> Cell:
    f, g = weights.activations
    hidden = weights.r.shape[1]
    gates, candidate = weights.r[: 2 * hidden], weights.r[2 * hidden :]
    gates_bias, candidate_bias = weights.r_bias[: 2 * hidden], weights.r_bias[2 * hidden :]
    linear = weights.attributes.get("linear_before_reset", 0)

    def step(given: Array, states: tuple[Array, ...]) -> tuple[Array, ...]:
        (h,) = states
        update, reset = np.split(f(given[:, : 2 * hidden] + h @ gates.T + gates_bias), 2, axis=1)
        if linear:
            inner = reset * (h @ candidate.T + candidate_bias)
        else:
            inner = (reset * h) @ candidate.T + candidate_bias
        return ((1 - update) * g(given[:, 2 * hidden :] + inner) + update * h,)

    return step


def _lstm_cell(weights: _Weights) -> Cell:
    f, g, h_activation = weights.activations
    hidden = weights.r.shape[1]
    peephole = np.zeros(3 * hidden) if weights.peephole is None else weights.peephole
    peep_i, peep_o, peep_f = np.split(peephole, 3)
    coupled = weights.attributes.get("input_forget", 0)

    def step(given: Array, states: tuple[Array, ...]) -> tuple[Array, ...]:
        h, c = states
        i, o, forget, candidate = np.split(given + h @ weights.r.T + weights.r_bias, 4, axis=1)
        i = f(i + peep_i * c)
        forget = 1 - i if coupled else f(forget + peep_f * c)
        c = forget * c + i * g(candidate)
        return f(o + peep_o * c) * h_activation(c), c

    return step


def _recurrent(gates: int, states: int, defaults: Sequence[str], make_cell: Callable[[_Weights], Cell]) -> Operator:
    def operator(inputs: Inputs, attributes: Attributes, outputs: int) -> Sequence[Any]:
        padded: list[Any] = [*inputs, None, None, None, None, None]
        x, w, r, bias, lengths, *rest = padded
        kind = np.float64 if x.dtype == np.float64 else np.float32
        batch_first = attributes.get("layout", 0)
        rows = np.swapaxes(x, 0, 1) if batch_first else x
        length, batch = rows.shape[:2]
        directions, hidden = r.shape[0], r.shape[2]
        if bias is None:
            bias = np.zeros((directions, 2 * gates * hidden), kind)
        lengths = np.full(batch, length) if lengths is None else lengths.astype(np.int64)
        activations = _activations(attributes, defaults, directions)
        each = len(activations) // directions
        results = []
        for d in range(directions):
            reverse = d == 1 or attributes.get("direction", "forward") == "reverse"
            w_bias, r_bias = np.split(bias[d].astype(kind), 2)
            weights = _Weights(
                r=r[d].astype(kind),
                r_bias=r_bias,
                peephole=None if states == 1 or rest[2] is None else rest[2][d].astype(kind),
                attributes=attributes,
                activations=activations[d * each : (d + 1) * each],
            )
            given = rows.astype(kind) @ w[d].astype(kind).T + w_bias
            starts = tuple(_start(rest[s], d, batch_first, (batch, hidden), kind) for s in range(states))
            results.append(_unrolled(make_cell(weights), given, starts, lengths, reverse))
        every = np.stack([result[0] for result in results], axis=1).astype(x.dtype)
        finals = [
            np.stack([result[1][s] for result in results], axis=1 if batch_first else 0).astype(x.dtype)
            for s in range(states)
        ]
        return [every.transpose(2, 0, 1, 3) if batch_first else every, *finals][:outputs]

    return operator


def _start(initial: Array | None, direction: int, batch_first: int, shape: tuple[int, int], kind: Any) -> Array:
    if initial is None:
        return np.zeros(shape, kind)
    return (initial[:, direction] if batch_first else initial[direction]).astype(kind)


def _unrolled(
    cell: Cell, given: Array, starts: tuple[Array, ...], lengths: Array, reverse: bool
) -> tuple[Array, tuple[Array, ...]]:
    """Outputs of every step `[length, batch, hidden]`, zero behind a sequence's end, and the states at its end."""
    states = starts
    outputs = np.zeros((given.shape[0], *starts[0].shape), starts[0].dtype)
    everyone = np.arange(given.shape[1])
    for step in range(given.shape[0]):
        going = step < lengths
        at = np.where(going, lengths - 1 - step, 0) if reverse else np.full(len(lengths), step)
        after = cell(given[at, everyone], states)
        states = tuple(np.where(going[:, None], new, old) for new, old in zip(after, states, strict=True))
        outputs[at[going], everyone[going]] = states[0][going]
    return outputs, states


_NEWEST = 1 << 30

#: Operator, first and last opset version, implementation.
RECURRENT: tuple[tuple[str, int, int, Operator], ...] = (
    ("RNN", 1, _NEWEST, _recurrent(1, 1, ("Tanh",), _rnn_cell)),
    ("GRU", 3, _NEWEST, _recurrent(3, 1, ("Sigmoid", "Tanh"), _gru_cell)),
    ("LSTM", 1, _NEWEST, _recurrent(4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm_cell)),
)
