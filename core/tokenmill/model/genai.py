"""Roles from a `genai_config.json`, as onnxruntime-genai's model builder writes it beside its exports.

Its names for past and present are templates: `%d` stands for the layer. A hybrid model has attention in some layers and
other states in the rest, so a template is expanded over the layers for which the graph has a port.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tokenmill.errors import PortError
from tokenmill.model.beside import GENAI_CONFIG, BesideFiles, Place, name, named_filename, section
from tokenmill.model.declared import Declaration
from tokenmill.model.graph import OnnxGraph, Port
from tokenmill.model.growth import sequence_axis
from tokenmill.model.naming import listing
from tokenmill.model.roles import PortPair, SequenceSource

#: Its key for each single port, with whether the file commonly lists it for graphs that lack it.
INPUT_KEYS = {
    "input_ids": ("token_input", False),
    "inputs_embeds": ("inputs_embeds_input", False),
    "attention_mask": ("attention_mask_input", True),
    "position_ids": ("position_ids_input", True),
}
OUTPUT_KEYS = {"logits": ("logits_output", False), "hidden_states": ("hidden_output", True)}


def genai_declaration(beside: BesideFiles, graph: OnnxGraph) -> Declaration | None:
    """Roles from the file; None without one, or when it speaks of another `.onnx` file.

    :raises ModelFileError: a wrong type; names file and key.
    :raises PortError: a name or template that no port matches, or past and present of different layers.
    """
    place = beside.place(GENAI_CONFIG)
    decoder_place = place / "model" / "decoder"
    decoder = section(section(beside.genai, "model", place), "decoder", place / "model")
    filename = named_filename(beside.genai, beside.directory / GENAI_CONFIG) if beside.directory else None
    if not decoder or (filename is not None and filename.rsplit("/", 1)[-1] != beside.model_filename):
        return None
    inputs, outputs = section(decoder, "inputs", decoder_place), section(decoder, "outputs", decoder_place)
    ports: dict[str, str] = {}
    notes: dict[str, str] = {}
    _single_ports(inputs, decoder_place / "inputs", INPUT_KEYS, graph, graph.inputs, ports, notes)
    _single_ports(outputs, decoder_place / "outputs", OUTPUT_KEYS, graph, graph.outputs, ports, notes)
    growing, fixed = _pairs(inputs, outputs, decoder_place, graph)
    source: SequenceSource | None = None
    if "token_input" not in ports and "inputs_embeds_input" in ports:
        source = "inputs_embeds"
    return Declaration(
        GENAI_CONFIG,
        sequence_source=source,
        ports=ports,
        kv_inputs=tuple(pair.past for pair in growing) if growing else None,
        kv_outputs=tuple(pair.present for pair in growing) if growing else None,
        state_pairs=tuple(fixed) if fixed else None,
        notes=notes,
    )


def _single_ports(
    values: Mapping[str, Any],
    place: Place,
    keys: Mapping[str, tuple[str, bool]],
    graph: OnnxGraph,
    side: tuple[Port, ...],
    ports: dict[str, str],
    notes: dict[str, str],
) -> None:
    present = {port.name for port in side}
    for key, (role, optional) in keys.items():
        declared = name(values, key, place)
        if declared is None:
            continue
        if declared in present:
            ports[role] = declared
        elif optional or (key in ("input_ids", "inputs_embeds") and _has_other_sequence(key, values, present)):
            notes[role] = f"{GENAI_CONFIG} names '{declared}', which the graph lacks"
        else:
            raise PortError(
                f"'{place / key}' names '{declared}', which the graph lacks",
                why=listing(graph),
                remedy="correct the name in the file",
            )


def _has_other_sequence(key: str, values: Mapping[str, Any], present: set[str]) -> bool:
    return values.get("inputs_embeds" if key == "input_ids" else "input_ids") in present


def _pairs(
    inputs: Mapping[str, Any], outputs: Mapping[str, Any], place: Place, graph: OnnxGraph
) -> tuple[list[PortPair], list[PortPair]]:
    """Past and present by layer: those that grow, and those of fixed extent."""
    found: list[tuple[int, int, PortPair]] = []
    kinds = [key.removeprefix("past_").removesuffix("names") for key in inputs if _is_past_key(key)]
    orphans = [
        key
        for key in outputs
        if _is_present_key(key) and key.removeprefix("present_").removesuffix("names") not in kinds
    ]
    if orphans:
        raise PortError(
            f"'{place / 'outputs' / orphans[0]}' has no counterpart among the inputs",
            why=f"the inputs' templates are {[key for key in inputs if _is_past_key(key)]}",
            remedy=f"add '{orphans[0].replace('present_', 'past_', 1)}'",
        )
    for order, kind in enumerate(kinds):
        pasts = _expand(inputs, f"past_{kind}names", place / "inputs", graph, graph.inputs)
        presents = _expand(outputs, f"present_{kind}names", place / "outputs", graph, graph.outputs)
        if pasts.keys() != presents.keys():
            raise PortError(
                f"'{place / 'inputs'}.past_{kind}names' and its present template match different layers",
                why=f"past: {sorted(pasts)}, present: {sorted(presents)}; {listing(graph)}",
                remedy="export every past with its present",
            )
        found += [(layer, order, PortPair(pasts[layer], presents[layer])) for layer in pasts]
    growing, fixed = [], []
    for _, _, pair in sorted(found, key=lambda item: item[:2]):
        past, present = graph.input(pair.past), graph.output(pair.present)
        if past is not None and past.shape is not None and sequence_axis(past, present) is None:
            fixed.append(PortPair(pair.past, pair.present, fixed=True))
        else:
            growing.append(pair)
    return growing, fixed


def _is_past_key(key: str) -> bool:
    # `cross_past_*` is an encoder's output, constant while decoding: routed like any other input.
    return re.fullmatch(r"past_(\w+_)?names", key) is not None


def _is_present_key(key: str) -> bool:
    return re.fullmatch(r"present_(\w+_)?names", key) is not None


def _expand(
    values: Mapping[str, Any], key: str, place: Place, graph: OnnxGraph, side: tuple[Port, ...]
) -> dict[int, str]:
    """Ports that a template matches, by layer; a template without `%d` is one port, of layer 0."""
    template = name(values, key, place)
    if template is None:
        raise PortError(
            f"'{place}' lacks '{key}'", why="its counterpart is declared", remedy="declare both, or neither"
        )
    if template.count("%d") > 1 or re.search(r"%(?!d)", template):
        raise (place / key).refuse(template, "a name with at most one '%d' for the layer")
    pattern = re.escape(template).replace("%d", r"(\d+)")
    matches = {port.name: match for port in side if (match := re.fullmatch(pattern, port.name))}
    if not matches:
        raise PortError(
            f"'{place / key}' is '{template}', which matches no port",
            why=listing(graph),
            remedy="correct the template in the file",
        )
    return {int(match[1]) if match.groups() else 0: port for port, match in matches.items()}
