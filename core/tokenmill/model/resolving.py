"""From what is declared and what is detected to the one meaning of each port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field

from tokenmill.errors import PortError
from tokenmill.model.beside import GENAI_CONFIG, BesideFiles
from tokenmill.model.declared import (
    INPUT_ROLES,
    Declaration,
    explicit_declaration,
    inference_declaration,
)
from tokenmill.model.detection import NAMES, detect_pairs, find_port
from tokenmill.model.genai import genai_declaration
from tokenmill.model.graph import OnnxGraph, Port
from tokenmill.model.growth import sequence_axis
from tokenmill.model.naming import listing
from tokenmill.model.requirements import DecoderRole, check_single_roles
from tokenmill.model.roles import IoSpec, KvOwnership, PortPair, SequenceSource, SharedKvGroup

DETECTED = "detected by name"


def resolve_roles(
    graph: OnnxGraph,
    beside: BesideFiles | None = None,
    *,
    explicit: Mapping[str, Any] | None = None,
    role: DecoderRole = "target",
) -> IoSpec:
    """The meaning of every port, each from the first source that states it: `explicit`, `inference_metadata.yaml`,
    `genai_config.json`, then names.

    Pairs are detected only where no source means to name them all: an `io` section of `inference_metadata.yaml` does,
    and for a proposer an explicit one does, too.

    :raises PortError: a declared name that the graph lacks (lists the ports), a port with two roles, lists of past and
        present that do not pair, a missing sequence input.
    """
    beside = beside or BesideFiles()
    candidates = (
        explicit_declaration(explicit) if explicit else None,
        inference_declaration(beside),
        genai_declaration(beside, graph),
    )
    resolution = _Resolution(graph, role, [found for found in candidates if found is not None])
    spec = resolution.spec()
    check_single_roles(spec)
    return spec


@define
class _Resolution:
    graph: OnnxGraph
    role: DecoderRole
    declarations: list[Declaration]
    sources: dict[str, str] = field(factory=dict)

    def spec(self) -> IoSpec:
        for declaration in reversed(self.declarations):
            self.sources.update(declaration.notes)
        sequence_source, token, embeds = self._sequence()
        ownership: KvOwnership = self._first("kv_ownership") or "owned"
        mask, position, logits = map(self._port, ("attention_mask_input", "position_ids_input", "logits_output"))
        hidden = self._port("hidden_output", detect=self.role == "proposer")
        shared = self._shared_groups()
        named = {token, embeds, mask, position, logits, hidden}
        kv, states = self._pairs(ownership == "shared", {name for name in named if name})
        return IoSpec(
            logits_output=logits,
            sequence_source=sequence_source,
            kv_ownership=ownership,
            token_input=token,
            inputs_embeds_input=embeds,
            attention_mask_input=mask,
            position_ids_input=position,
            hidden_output=hidden,
            kv_pairs=kv,
            state_pairs=states,
            shared_kv=shared,
            sources=self.sources,
        )

    def _first(self, fact: str) -> Any:
        for declaration in self.declarations:
            value = getattr(declaration, fact)
            if value is not None:
                self.sources[fact] = declaration.source
                return value
        return None

    def _side(self, role: str) -> tuple[Port, ...]:
        return self.graph.inputs if role in INPUT_ROLES else self.graph.outputs

    def _port(self, role: str, detect: bool = True) -> str | None:
        for declaration in self.declarations:
            name = declaration.ports.get(role)
            if name is not None:
                self._require(name, self._side(role), f"io.{role}", declaration.source)
                self.sources[role] = declaration.source
                return name
        found = find_port(self._side(role), role) if detect else None
        if found is not None:
            self.sources[role] = DETECTED
        return found

    def _require(self, name: str, side: tuple[Port, ...], what: str, source: str) -> None:
        if all(port.name != name for port in side):
            kind = "input" if side is self.graph.inputs else "output"
            raise PortError(
                f"{what} names the {kind} '{name}', which the graph lacks",
                why=f"declared in {source}; {listing(self.graph)}",
                remedy="correct the name",
            )

    def _sequence(self) -> tuple[SequenceSource, str | None, str | None]:
        """Token ids or embeddings, and their ports. The input that is not the source has a role only when declared."""
        source: SequenceSource | None = self._first("sequence_source")
        token = self._port("token_input", detect=source != "inputs_embeds")
        embeds = self._port(
            "inputs_embeds_input", detect=source == "inputs_embeds" or (source is None and token is None)
        )
        if source is None:
            source = "inputs_embeds" if token is None and embeds is not None else "token_ids"
        role = "token_input" if source == "token_ids" else "inputs_embeds_input"
        if (token if source == "token_ids" else embeds) is None:
            raise PortError(
                f"the graph has no {NAMES[role][0]}",
                why=f"its sequence source is {source}; {listing(self.graph)}",
                remedy=f"declare io.{role}, or export an input called {' or '.join(NAMES[role])}",
            )
        return source, token, embeds

    # --- past and present --------------------------------------------------------------------------------------------

    def _pairs(self, shared: bool, named: set[str]) -> tuple[tuple[PortPair, ...], tuple[PortPair, ...]]:
        kv, kv_source = self._declared_kv(shared)
        if shared:
            return (), self._declared_states() or ()
        states = self._declared_states()
        # What an exporter's templates leave out may still be detected; what a written list leaves out is meant so.
        written = (d for d in self.declarations if d.source != GENAI_CONFIG)
        detects = not any(d.whole or self.role == "proposer" for d in written)
        if detects and (kv is None or states is None):
            taken = {port for pair in (*(kv or ()), *(states or ())) for port in (pair.past, pair.present)}
            detected = self._detect(kv is not None or states is not None, named | taken)
            if kv is None:
                kv = tuple(pair for pair in detected if not pair.fixed)
                kv_source = DETECTED if kv else ""
            if states is None:
                states = tuple(pair for pair in detected if pair.fixed)
                if states:
                    self.sources["state_pairs"] = DETECTED
        if kv and kv_source:
            self.sources["kv_pairs"] = kv_source
        # A fixed state that was declared among the KV is kept as what its shape says it is.
        moved = tuple(PortPair(pair.past, pair.present, fixed=True) for pair in kv or () if self._is_fixed(pair))
        growing = tuple(pair for pair in kv or () if not self._is_fixed(pair))
        return growing, (*(states or ()), *moved)

    def _detect(self, partly_declared: bool, taken: set[str]) -> tuple[PortPair, ...]:
        if not partly_declared:
            return detect_pairs(self.graph, taken)
        # Beside declared lists, a port that merely looks like a past may well be meant to be routed.
        try:
            return detect_pairs(self.graph, taken)
        except PortError:
            return ()

    def _is_fixed(self, pair: PortPair) -> bool:
        past, present = self.graph.input(pair.past), self.graph.output(pair.present)
        return past is not None and past.shape is not None and sequence_axis(past, present) is None

    def _declared_kv(self, shared: bool) -> tuple[tuple[PortPair, ...] | None, str]:
        for declaration in self.declarations:
            pasts, presents = declaration.kv_inputs, declaration.kv_outputs
            if pasts is None and presents is None:
                continue
            if shared:
                if presents:
                    raise PortError(
                        f"io.kv_outputs names {list(presents)}, but io.kv_ownership is 'shared'",
                        why="a borrower reads its target's KV and gives none of its own",
                        remedy="remove io.kv_outputs, or declare kv_ownership: owned",
                    )
                continue
            if pasts is None or presents is None or len(pasts) != len(presents):
                raise PortError(
                    f"io.kv_inputs has {_count(pasts)}, io.kv_outputs {_count(presents)}",
                    why=f"they pair by position; kv_inputs: {_shown(pasts)}, kv_outputs: {_shown(presents)} "
                    f"({declaration.source})",
                    remedy="declare both lists with equal lengths",
                )
            for what, names, side in (
                ("kv_inputs", pasts, self.graph.inputs),
                ("kv_outputs", presents, self.graph.outputs),
            ):
                for name in names:
                    self._require(name, side, f"io.{what}", declaration.source)
            return tuple(map(PortPair, pasts, presents)), declaration.source
        return None, ""

    def _declared_states(self) -> tuple[PortPair, ...] | None:
        for declaration in self.declarations:
            if declaration.state_pairs is None:
                continue
            for pair in declaration.state_pairs:
                self._require(pair.past, self.graph.inputs, "io.state_pairs", declaration.source)
                self._require(pair.present, self.graph.outputs, "io.state_pairs", declaration.source)
            self.sources["state_pairs"] = declaration.source
            return declaration.state_pairs
        return None

    def _shared_groups(self) -> tuple[SharedKvGroup, ...]:
        groups: tuple[SharedKvGroup, ...] = self._first("shared_kv") or ()
        fields = ("target_key_input", "target_value_input") if self.role == "target" else ("key_input", "value_input")
        for group in groups:
            for what in fields:
                name = getattr(group, what)
                if name is not None:
                    self._require(
                        name, self.graph.inputs, f"io.shared_kv '{group.name}' {what}", self.sources["shared_kv"]
                    )
        return groups


def _count(names: tuple[str, ...] | None) -> str:
    return "no list" if names is None else f"{len(names)} entries"


def _shown(names: tuple[str, ...] | None) -> str:
    return "none" if names is None else str(list(names))
