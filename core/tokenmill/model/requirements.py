"""What the roles of a target and of a proposer must be."""

from __future__ import annotations

from typing import Literal

from tokenmill.errors import PortError
from tokenmill.model.declared import INPUT_ROLES, OUTPUT_ROLES
from tokenmill.model.graph import OnnxGraph
from tokenmill.model.naming import listing
from tokenmill.model.roles import IoSpec

#: Who a decoder is loaded as: the model that generates, or one that proposes tokens for it.
DecoderRole = Literal["target", "proposer"]


def check_single_roles(spec: IoSpec) -> None:
    """:raises PortError: a port with two roles."""
    sides = (
        [(getattr(spec, role), role) for role in INPUT_ROLES]
        + [(pair.past, "past of " + pair.present) for pair in spec.pairs],
        [(getattr(spec, role), role) for role in OUTPUT_ROLES]
        + [(pair.present, "present of " + pair.past) for pair in spec.pairs],
    )
    sequence_roles = {spec.token_input: "token ids", spec.inputs_embeds_input: "embeddings"}
    for side in sides:
        roles: dict[str, str] = {}
        for port, role in side:
            if port is None:
                continue
            if port in roles:
                is_kv = " of " in role and port in sequence_roles
                raise PortError(
                    f"port '{port}' is listed as KV, but it is the sequence input"
                    if is_kv
                    else f"port '{port}' has two roles: {roles[port]} and {role}",
                    why=f"it carries the {sequence_roles[port]} of each step" if is_kv else "each port has one role",
                    remedy="correct kv_inputs in model.io"
                    if is_kv
                    else "declare each role with a port of its own in model.io",
                )
            roles[port] = role


def check_decoder(graph: OnnxGraph, io: IoSpec, role: DecoderRole) -> None:
    """`check_target` or `check_proposer`, with the graph's ports in the message."""
    try:
        (check_target if role == "target" else check_proposer)(io)
    except PortError as error:
        raise PortError(error.what, why=f"{error.why}; {listing(graph)}", remedy=error.remedy) from None


def check_target(io: IoSpec) -> None:
    """What a decoder that generates text must have.

    :raises PortError: shared KV, no logits, or no past/present pairs.
    """
    if io.kv_ownership == "shared":
        raise PortError(
            "the decoder declares kv_ownership 'shared'",
            why="a target owns its KV; only a proposer may borrow another's",
            remedy="declare kv_ownership: owned, or load it as a proposer of its target",
        )
    if io.logits_output is None:
        raise PortError(
            "the decoder has no logits",
            why="no output is declared or called so",
            remedy="declare io.logits_output, or export the logits",
        )
    if not io.pairs:
        raise PortError(
            "the decoder has no past/present pairs",
            why="it would compute the whole text again for each token",
            remedy="export a decoder with past (use_cache), or declare kv_inputs and kv_outputs in model.io",
        )


def check_proposer(io: IoSpec) -> None:
    """What a proposer must have: logits or a projected state, and something to borrow if it borrows.

    :raises PortError: neither output.
    """
    if io.logits_output is None and io.hidden_output is None:
        raise PortError(
            "the proposer has neither logits nor a projected state",
            why="nothing that it computes has a meaning",
            remedy="declare io.logits_output or io.hidden_output",
        )
