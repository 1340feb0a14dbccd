"""Operators that carry a state from step to step in place of a growing cache."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenmill_reference.contrib.activation import sigmoid, silu
from tokenmill_reference.contrib.convention import (
    Array,
    Attributes,
    Inputs,
    Operator,
    Outputs,
    fits,
    given,
    refuse,
    required,
    text,
    wide,
    wide_or,
)

Wide = npt.NDArray[np.float64]


def causal_conv_with_state(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """Depthwise convolution, causal along the last axis, with the inputs that the next step needs as state.

    Inputs: x `[B, C, ..., S]` (`channels_last`: `[B, S, d1, ..., dn]` with C their product), weight `[C, 1, k...]`,
    bias `[C]`, past state `[B, C, ..., (k - 1) dilation]`; with `state_window` W, `[W, B, ...]`, whose last slot is
    read. Outputs: y like x, and the state after the last position (slot j of W: after position `S - W + j`; zeros
    before the first). Axes before the last one (`ndim` 2, 3) are padded with zeros on both sides to keep their extent.
    """
    x, weight, past = required(inputs, 0, "input"), required(inputs, 1, "weight"), given(inputs, 3)
    _refuse_device_only(attributes)
    window, last = int(attributes.get("state_window", 0)), bool(attributes.get("channels_last", 0))
    dilation = int(attributes.get("dilation", 1))
    activation = text(attributes, "activation", "none")
    refuse(
        activation not in ("none", "", "silu", "swish"),
        f"activation={activation!r} of CausalConvWithState",
        "none, silu and swish are defined",
    )
    signal = _channels_first(x) if last else x
    held = (weight.shape[-1] - 1) * dilation
    state_shape = (x.shape[0], held, *x.shape[2:]) if last else (*x.shape[:-1], held)
    fits(weight, "weight", signal.shape[1], 1, *(None,) * (signal.ndim - 2))
    fits(given(inputs, 2), "bias", signal.shape[1])
    fits(past, "past_state", *((window, *state_shape) if window else state_shape))
    if past is None:
        history = np.zeros((*signal.shape[:-1], held), signal.dtype)
    else:
        slot = past[window - 1] if window else past
        history = _channels_first(slot) if last else slot
    extended = np.concatenate((history.astype(signal.dtype), signal), axis=-1)

    y = _depthwise(wide(extended), wide(weight), dilation)
    bias = given(inputs, 2)
    if bias is not None:
        y = y + wide(bias).reshape(-1, *(1,) * (y.ndim - 2))
    if activation in ("silu", "swish"):
        y = silu(y)

    rows = signal.shape[-1]

    def state_after(count: int) -> Array:
        """The state when `count` positions of this step have passed."""
        state = extended[..., count : count + held]
        return np.moveaxis(state, -1, 1).reshape(x.shape[0], held, *x.shape[2:]) if last else state

    if window:
        counts = range(rows - window + 1, rows + 1)
        present = np.stack([state_after(n) if n > 0 else np.zeros_like(state_after(0)) for n in counts])
    else:
        present = state_after(rows)
    y = y.astype(x.dtype)
    return [np.moveaxis(y, -1, 1).reshape(x.shape) if last else y, present.astype(x.dtype)][:outputs]


def _channels_first(x: Array) -> Array:
    return np.moveaxis(x.reshape(*x.shape[:2], -1), 1, -1)


def _depthwise(x: Wide, weight: Wide, dilation: int) -> Wide:
    """Sum over taps of shifted inputs; `x` already carries its history along the last axis."""
    kernel = weight.shape[2:]
    around = [((k - 1) // 2, k // 2) for k in kernel[:-1]]
    x = np.pad(x, [(0, 0), (0, 0), *around, (0, 0)])
    steps = [1] * (len(kernel) - 1) + [dilation]
    extents = [n - (k - 1) * step for n, k, step in zip(x.shape[2:], kernel, steps, strict=True)]
    y = np.zeros((*x.shape[:2], *extents))
    for tap in np.ndindex(*kernel):
        shifted = tuple(slice(t * step, t * step + n) for t, step, n in zip(tap, steps, extents, strict=True))
        factor = weight[(slice(None), 0, *tap)].reshape(-1, *(1,) * len(kernel))
        y += factor * x[(slice(None), slice(None), *shifted)]
    return y


def _refuse_device_only(attributes: Attributes) -> None:
    defaults = {
        "state_update_capacity": 0,
        "state_channels_last": -1,
        "state_length": 0,
        "input_channel_offset": 0,
        "input_channels": 0,
    }
    used = [
        f"{name}={attributes[name]}" for name, default in defaults.items() if attributes.get(name, default) != default
    ]
    refuse(
        used, f"CausalConvWithState with {', '.join(used)}", "defined for one CUDA path alone", "export without them"
    )


def linear_attention(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """Attention as a recurrence over a state `[B, G, Dk, Dv]`, one token after the other.

    Inputs: query `[B, S, H Dk]`, key `[B, S, G Dk]`, value `[B, S, G Dv]`, past state (with `state_window` W, `[W, B,
    ...]`, whose last slot is read), decay in log space `[B, S, G]` or `[B, S, G Dk]`, beta `[B, S, G]` or `[B, S, 1]`.
    For each token the state is scaled by `exp(decay)` (gated rules), then `k (beta (v - state' k))'` is added (delta
    rules) or `k v'`; the output is `scale * state' q`, `[B, S, max(H, G) Dv]`. Output 1 is the state after the last
    token (slot j: after `S - W + j`).
    """
    query, key, value = (required(inputs, i, name) for i, name in enumerate(("query", "key", "value")))
    heads, groups = int(attributes["q_num_heads"]), int(attributes["kv_num_heads"])
    rule = text(attributes, "update_rule", "gated_delta")
    refuse(
        rule not in ("linear", "gated", "delta", "gated_delta"),
        f"update_rule={rule!r} of LinearAttention",
        "linear, gated, delta and gated_delta are defined",
    )
    window, past = int(attributes.get("state_window", 0)), given(inputs, 3)
    batch, rows = query.shape[:2]
    q, k, v = (wide(x).reshape(batch, rows, n, -1) for x, n in ((query, heads), (key, groups), (value, groups)))
    scale = float(attributes.get("scale", 0.0)) or 1 / np.sqrt(q.shape[-1])
    shape = (batch, groups, k.shape[-1], v.shape[-1])
    fits(past, "past_state", *((window, *shape) if window else shape))
    state = np.zeros(shape) if past is None else wide(past[window - 1] if window else past)
    kept = np.ones((batch, rows, groups, 1))
    if "gated" in rule:
        decay = required(inputs, 4, "decay")
        fits(decay, "decay", batch, rows, groups if decay.shape[-1] == groups else groups * k.shape[-1])
        kept = np.exp(wide(decay)).reshape(batch, rows, groups, -1)
    rate = np.ones((batch, rows, 1))
    if "delta" in rule:
        beta = required(inputs, 5, "beta")
        fits(beta, "beta", batch, rows, 1 if beta.shape[-1] == 1 else groups)
        rate = wide(beta)

    # Several query heads read one state, or several states answer one query head.
    wanted = max(heads, groups)
    reader, owner = np.arange(wanted) * heads // wanted, np.arange(wanted) * groups // wanted
    output = np.zeros((batch, rows, wanted, v.shape[-1]))
    states = [np.zeros(shape)] * window
    for t in range(rows):
        state = state * kept[:, t, :, :, np.newaxis]
        target = v[:, t]
        if "delta" in rule:
            target = target - np.einsum("bgkv,bgk->bgv", state, k[:, t])
        state = state + np.einsum("bgk,bgv->bgkv", k[:, t], rate[:, t, :, np.newaxis] * target)
        output[:, t] = scale * np.einsum("bhkv,bhk->bhv", state[:, owner], q[:, t][:, reader])
        states.append(state)
    dtype = query.dtype if past is None else past.dtype
    present = np.stack(states[-window:]) if window else state
    return [output.reshape(batch, rows, -1).astype(query.dtype), present.astype(dtype)][:outputs]


def linear_attention_gate(inputs: Inputs, attributes: Attributes, outputs: int) -> Outputs:
    """`decay_scale * softplus(a + dt_bias)`, and `sigmoid(b)`."""
    a, dt_bias, decay_scale = (required(inputs, i, name) for i, name in enumerate(("a", "dt_bias", "decay_scale")))
    decay = wide(decay_scale) * np.logaddexp(0, wide(a) + wide(dt_bias))
    results = [decay.astype(a.dtype)]
    if outputs > 1:
        results.append(sigmoid(wide_or(required(inputs, 3, "b"))).astype(a.dtype))
    return results


OPERATORS: dict[str, Operator] = {
    "CausalConvWithState": causal_conv_with_state,
    "LinearAttention": linear_attention,
    "LinearAttentionGate": linear_attention_gate,
}
