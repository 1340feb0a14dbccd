"""Whether a plan appends to a past in place, by what its operators declare."""

from __future__ import annotations

from attrs import frozen
from tokenmill.contracts.answers import Accepted, Answer, Declined
from tokenmill.model.graph import OnnxGraph
from tokenmill.model.growth import sequence_axis
from tokenmill.model.roles import PortPair

from tokenmill_cpu.call import Call
from tokenmill_cpu.plan import Branching, Plan


def append_answer(graph: OnnxGraph, plan: Plan, pair: PortPair) -> Answer:
    """Accepted when one operator appends to the past, and every other reader looks at its shape alone.

    An `If` counts as one operator when each branch appends by that rule, or computes the present without the past.
    """
    past, program = graph.input(pair.past), plan.program
    if past is None or pair.present not in program.output_names:
        return Declined(f"the graph has no pair '{pair.past}', '{pair.present}'")
    present = program.outputs[program.output_names.index(pair.present)]
    axis = sequence_axis(past, graph.output(pair.present))
    if past.shape is None or axis is None:
        return Declined(f"'{pair.past}' has no axis that grows")
    search = _Search(pair, axis, len(past.shape))
    appenders = search.appenders(plan, program.inputs[program.input_names.index(pair.past)], present)
    if isinstance(appenders, Declined):
        return appenders
    if appenders != 1:
        return Declined(f"{appenders} operators append to '{pair.past}'", "it takes exactly one")
    return Accepted("one append-aware operator owns past and present")


@frozen
class _Search:
    """:param axis: of the past's `rank` axes the one that grows."""

    pair: PortPair
    axis: int
    rank: int

    def appenders(self, plan: Plan, past: int, present: int | None) -> int | Declined:
        """How many calls append to the slot `past` and give `present`; declined if any does something else with it."""
        if past in plan.program.outputs:
            return Declined(f"'{self.pair.past}' is an output itself")
        total = 0
        for call in plan.calls:
            if past in call.reads:
                found = (
                    self._in_branches(call, past, present)
                    if isinstance(call, Branching)
                    else self._in_call(call, past, present)
                )
                if isinstance(found, Declined):
                    return found
                total += found
        return total

    def _in_call(self, call: Call, past: int, present: int | None) -> int | Declined:
        operator, outputs, found = call.operator, call.instruction.outputs, 0
        if operator is None:
            return Declined(f"{call.instruction.title} reads '{self.pair.past}' and does not append in place")
        for position in (index for index, slot in enumerate(call.reads) if slot == past):
            if position in operator.reads_shape:
                continue
            output = operator.appends.get(position)
            along = self.axis if operator.append_axis is None else operator.append_axis % self.rank
            if output is None or along != self.axis or outputs[output : output + 1] != (present,):
                return Declined(
                    f"{call.instruction.title} reads '{self.pair.past}' and does not write '{self.pair.present}'"
                )
            found += 1
        return found

    def _in_branches(self, call: Branching, past: int, present: int | None) -> int | Declined:
        instruction = call.instruction
        if instruction.operator != "If" or past in instruction.inputs:
            return Declined(f"{instruction.title} reads '{self.pair.past}', and may run more than once")
        output = instruction.outputs.index(present) if present in instruction.outputs else None
        most = 0
        for plan in call.bodies.values():
            inner = dict(plan.program.captures).get(past)
            if inner is not None:
                found = self.appenders(plan, inner, None if output is None else plan.program.outputs[output])
                if isinstance(found, Declined):
                    return found
                most = max(most, found)
        return most
