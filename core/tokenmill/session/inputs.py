"""Every non-KV input of a decoder with what fills it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenmill.contracts.routing import StepInput, StepRouter
from tokenmill.contracts.step import Step
from tokenmill.errors import PluginError
from tokenmill.model.decoder import Decoder
from tokenmill.session.routed import RoutedInput, RoutedPairs, routed_values


class StepInputs:
    """:param inputs: in the graph's order."""

    def __init__(self, inputs: Sequence[StepInput]) -> None:
        self.inputs = tuple(inputs)
        self.sources = {given.port.name: given.source for given in self.inputs}
        self._takes_values = any(given.supplied for given in self.inputs)
        self._embeddings = {given.port.name for given in self.inputs if given.source == "inputs_embeds"}
        self._prepare = [given.prepare for given in self.inputs]
        self._write = [(given.port.name, given.write) for given in self.inputs]

    def routed(self, pairs: RoutedPairs) -> dict[str, Any]:
        """The caller's values by port. :raises RoutedInputError: see `routed_values`."""
        return routed_values(pairs, self.inputs) if pairs or self._takes_values else {}

    def splits(self, values: dict[str, Any]) -> bool:
        """Whether a step with these values may be run in chunks: of embeddings alone it is known which rows are whose."""
        return values.keys() <= self._embeddings

    def prepare(self, step: Step) -> None:
        for prepare in self._prepare:
            prepare(step)

    def write(self, step: Step) -> dict[str, Any]:
        return {name: write(step) for name, write in self._write}

    def rewind(self, length: int) -> None:
        for given in self.inputs:
            given.rewind(length)

    def abort(self, step: Step) -> None:
        for given in self.inputs:
            given.abort(step)


def claim_inputs(decoder: Decoder, routers: Sequence[StepRouter]) -> StepInputs:
    """Ask the routers, in their order, for every input that is no past; what nobody claims is routed by the caller.

    :raises PluginError: nobody fills the token ids.
    """
    io = decoder.io
    kept = {pair.past for pair in io.pairs}
    inputs: list[StepInput] = []
    for port in decoder.graph.inputs:
        if port.name in kept:
            continue
        claims = (router.claim(port, io) for router in routers)
        inputs.append(next((claim for claim in claims if claim is not None), None) or RoutedInput(port))
    found = StepInputs(inputs)
    if io.sequence_source == "token_ids" and found.sources.get(io.token_input or "") == RoutedInput.source:
        raise PluginError(
            f"nothing fills the token ids '{io.token_input}'",
            why=f"routers that were asked: {', '.join(router.name for router in routers) or 'none'}",
            remedy="install or enable a plugin with a router for token ids; `tokenmill plugins` lists them",
        )
    return found
