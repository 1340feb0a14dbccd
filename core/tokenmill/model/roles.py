"""What each port of a decoder means."""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen

SequenceSource = Literal["token_ids", "inputs_embeds"]
KvOwnership = Literal["owned", "shared"]


@frozen
class PortPair:
    """A past input and the present output that replaces it. `fixed` marks a recurrent state of constant extent."""

    past: str
    present: str
    fixed: bool = False


@frozen
class SharedKvGroup:
    """Which of a target's past ports feed which ports of a proposer. A missing field is an error when it is lent."""

    name: str
    target_key_input: str | None = None
    target_value_input: str | None = None
    key_input: str | None = None
    value_input: str | None = None


@frozen
class IoSpec:
    """The resolved roles of a decoder's ports.

    :param kv_pairs: attention's past and present, growing along the sequence.
    :param state_pairs: recurrent states of fixed extent, replaced whole at each step.
    """

    logits_output: str | None
    sequence_source: SequenceSource = "token_ids"
    kv_ownership: KvOwnership = "owned"
    token_input: str | None = None
    inputs_embeds_input: str | None = None
    attention_mask_input: str | None = None
    position_ids_input: str | None = None
    hidden_output: str | None = None
    kv_pairs: tuple[PortPair, ...] = ()
    state_pairs: tuple[PortPair, ...] = ()
    shared_kv: tuple[SharedKvGroup, ...] = ()
    sources: dict[str, str] = field(factory=dict, eq=False)
    """Where each role came from, for `inspect` and `explain`."""

    @property
    def pairs(self) -> tuple[PortPair, ...]:
        return self.kv_pairs + self.state_pairs

    @property
    def sequence_input(self) -> str | None:
        return self.token_input if self.sequence_source == "token_ids" else self.inputs_embeds_input
