"""Roles by the names that exporters give: for graphs of which nobody says what their ports mean."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from tokenmill.errors import PortError
from tokenmill.model.graph import OnnxGraph, Port
from tokenmill.model.growth import sequence_axis
from tokenmill.model.roles import PortPair

NAMES: dict[str, tuple[str, ...]] = {
    "token_input": ("input_ids", "decoder_input_ids"),
    "inputs_embeds_input": ("inputs_embeds",),
    "attention_mask_input": ("attention_mask",),
    "position_ids_input": ("position_ids",),
    "logits_output": ("logits",),
    "hidden_output": ("projected_state",),
}

_CACHE_NAME = re.compile(r"(?:.*[./])?(past|present)(?:_key_values?)?(?:[._](.+))?", re.IGNORECASE)
_INDEX_TYPES = ("int32", "int64", "bool", "string", "")


def find_port(ports: Sequence[Port], role: str) -> str | None:
    """The port whose name is, or ends in a dot and, a usual name of the role; letter case does not count."""
    for wanted in NAMES[role]:
        for matches in (lambda name, w=wanted: name == w, lambda name, w=wanted: name.endswith(f".{w}")):
            found = next((port.name for port in ports if matches(port.name.lower())), None)
            if found is not None:
                return found
    return None


def detect_pairs(graph: OnnxGraph, taken: Collection[str] = ()) -> tuple[PortPair, ...]:
    """Past and present with the same rest of their names, in the order of the past inputs.

    `past_key_values.0.key` belongs to `present.0.key`, `past_conv.0` to `present_conv.0`. A pair whose past has a
    static penultimate axis and no other growing one is a recurrent state. An encoder's keys and values are no pairs:
    they stay the same while decoding.

    :param taken: ports that already have a role.
    :raises PortError: a past or present without its counterpart, or two of the same name; with both lists.
    """
    pasts = _by_suffix(graph.inputs, "past", taken)
    presents = _by_suffix(graph.outputs, "present", taken)
    lonely = [
        port.name
        for suffix, port in (*pasts.items(), *presents.items())
        if suffix not in pasts.keys() & presents.keys()
    ]
    if lonely:
        raise PortError(
            f"no counterpart is found for {lonely}",
            why=f"past inputs: {[port.name for port in pasts.values()]}, "
            f"present outputs: {[port.name for port in presents.values()]}",
            remedy="declare kv_inputs and kv_outputs in model.io, or export a decoder with past",
        )
    return tuple(
        PortPair(
            past.name,
            presents[suffix].name,
            fixed=past.shape is not None and sequence_axis(past, presents[suffix]) is None,
        )
        for suffix, past in pasts.items()
    )


def _by_suffix(ports: Sequence[Port], side: str, taken: Collection[str]) -> dict[str, Port]:
    found: dict[str, Port] = {}
    for port in ports:
        match = _CACHE_NAME.fullmatch(port.name)
        if match is None or match[1].lower() != side or port.name in taken or not _holds_state(port):
            continue
        suffix = (match[2] or "").lower().replace("_", ".")
        if "encoder" in suffix.split(".") or "cross" in suffix.split("."):
            continue
        if suffix in found:
            raise PortError(
                f"'{found[suffix].name}' and '{port.name}' both look like the {side} of '{suffix}'",
                remedy="declare kv_inputs and kv_outputs in model.io",
            )
        found[suffix] = port
    return found


def _holds_state(port: Port) -> bool:
    """Not a scalar or vector of lengths, which exporters like to call `past_sequence_length`."""
    return port.kind == "tensor" and port.element not in _INDEX_TYPES and (port.shape is None or len(port.shape) >= 2)
