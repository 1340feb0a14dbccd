"""Roles that somebody wrote down: explicit configuration, or `inference_metadata.yaml` beside the model."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, cast, get_args

from attrs import field, frozen

from tokenmill.errors import ConfigError
from tokenmill.model.beside import INFERENCE_METADATA, BesideFiles, Place, mapping, name, names, section
from tokenmill.model.roles import KvOwnership, PortPair, SequenceSource, SharedKvGroup

#: Fields that each name one input, or one output, of the graph.
INPUT_ROLES = ("token_input", "inputs_embeds_input", "attention_mask_input", "position_ids_input")
OUTPUT_ROLES = ("logits_output", "hidden_output")

GROUP_FIELDS = ("name", "target_key_input", "target_value_input", "key_input", "value_input")
FIELDS = (
    "sequence_source", "kv_ownership", *INPUT_ROLES, *OUTPUT_ROLES,
    "kv_inputs", "kv_outputs", "state_pairs", "shared_kv",
)  # fmt: skip

CONFIGURATION = "configuration"


@frozen
class Declaration:
    """What one source says about roles. None is silence; an empty tuple says that there are none.

    :param whole: it means to name every pair: what it does not name is not detected either.
    :param notes: by role, why something that the source says was not used.
    """

    source: str
    sequence_source: SequenceSource | None = None
    kv_ownership: KvOwnership | None = None
    ports: Mapping[str, str] = field(factory=dict)
    kv_inputs: tuple[str, ...] | None = None
    kv_outputs: tuple[str, ...] | None = None
    state_pairs: tuple[PortPair, ...] | None = None
    shared_kv: tuple[SharedKvGroup, ...] | None = None
    whole: bool = False
    notes: Mapping[str, str] = field(factory=dict)


def explicit_declaration(io: Mapping[str, Any]) -> Declaration:
    """Roles from `model.io` of the configuration or of a call.

    :raises ConfigError: an unknown key or a wrong type; names the key.
    """
    place = Place("the configuration", "model.io", ConfigError)
    values = mapping(io, place)
    unknown = sorted(set(values) - set(FIELDS))
    if unknown:
        raise _unknown_key(place, unknown[0])
    return _read(values, place, CONFIGURATION, whole=False)


def inference_declaration(beside: BesideFiles) -> Declaration | None:
    """Roles from `model.io` of `inference_metadata.yaml`; None when it has no such section.

    A key that other readers of the file may know is passed over; one that looks like a misspelt role is not.

    :raises ModelFileError: a wrong type or a misspelt key; names file and key.
    """
    place = beside.place(INFERENCE_METADATA)
    model = section(beside.inference, "model", place)
    if model.get("io") is None:
        return None
    place = place / "model" / "io"
    values = mapping(model["io"], place)
    for key in values:
        if key not in FIELDS and difflib.get_close_matches(key, FIELDS, 1, cutoff=0.85):
            raise _unknown_key(place, key)
    return _read(values, place, INFERENCE_METADATA, whole=True)


def _unknown_key(place: Place, key: str) -> Exception:
    close = difflib.get_close_matches(key, FIELDS, 1)
    return place.error(
        f"'{place / key}' is no role",
        why=f"known are {', '.join(FIELDS)}",
        remedy=f"did you mean '{close[0]}'?" if close else "remove it",
    )


def _read(values: Mapping[str, Any], place: Place, source: str, *, whole: bool) -> Declaration:
    roles = (*INPUT_ROLES, *OUTPUT_ROLES)
    return Declaration(
        source,
        sequence_source=cast(
            "SequenceSource | None", _choice(values, "sequence_source", get_args(SequenceSource), place)
        ),
        kv_ownership=cast("KvOwnership | None", _choice(values, "kv_ownership", get_args(KvOwnership), place)),
        ports={role: port for role in roles if (port := name(values, role, place)) is not None},
        kv_inputs=names(values, "kv_inputs", place),
        kv_outputs=names(values, "kv_outputs", place),
        state_pairs=_state_pairs(values, place),
        shared_kv=_shared_kv(values, place),
        whole=whole,
    )


def _choice(values: Mapping[str, Any], key: str, allowed: tuple[str, ...], place: Place) -> str | None:
    value = values.get(key)
    if value is not None and value not in allowed:
        raise (place / key).refuse(value, " or ".join(repr(choice) for choice in allowed))
    return value


def _entries(values: Mapping[str, Any], key: str, place: Place) -> list[tuple[dict[str, Any], Place]] | None:
    value = values.get(key)
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        raise (place / key).refuse(value, "a list of mappings")
    places = [place / f"{key}[{index}]" for index in range(len(value))]
    return [(mapping(item, where), where) for item, where in zip(value, places, strict=True)]


def _state_pairs(values: Mapping[str, Any], place: Place) -> tuple[PortPair, ...] | None:
    entries = _entries(values, "state_pairs", place)
    if entries is None:
        return None
    pairs = []
    for entry, where in entries:
        past, present = name(entry, "input", where), name(entry, "output", where)
        if past is None or present is None:
            raise where.refuse(entry, "a mapping with 'input' and 'output'")
        pairs.append(PortPair(past, present, fixed=True))
    return tuple(pairs)


def _shared_kv(values: Mapping[str, Any], place: Place) -> tuple[SharedKvGroup, ...] | None:
    entries = _entries(values, "shared_kv", place)
    if entries is None:
        return None
    groups = []
    for entry, where in entries:
        unknown = sorted(set(entry) - set(GROUP_FIELDS))
        if unknown:
            raise (where / unknown[0]).refuse(entry[unknown[0]], f"absent: a group has {', '.join(GROUP_FIELDS)}")
        title = name(entry, "name", where)
        if title is None:
            raise where.refuse(entry, "a group with a 'name'")
        groups.append(SharedKvGroup(title, **{key: name(entry, key, where) for key in GROUP_FIELDS[1:]}))
    return tuple(groups)
