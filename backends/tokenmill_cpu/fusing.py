"""Neighbouring calls made one, where fewer launches give the same values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import evolve
from tokenmill.model.program import Instruction, Program

from tokenmill_cpu.call import Call
from tokenmill_cpu.operators import Node
from tokenmill_cpu.operators.activations import GatedSilu
from tokenmill_cpu.operators.quantized import IntegerProduct, JoinedProducts
from tokenmill_cpu.plan import Branching

Calls = list["Call | Branching"]

#: Domain of the operators that stand for several nodes.
DOMAIN = "tokenmill"


def fuse(calls: Calls, program: Program, make_node: Callable[[Instruction, Program], Node]) -> Calls:
    """Calls of a program whose nodes were prepared one by one."""
    return _join_products(_gate(calls, program, make_node))


def _gate(calls: Calls, program: Program, make_node: Callable[[Instruction, Program], Node]) -> Calls:
    """`x * Sigmoid(x) * y` to `GatedSilu`."""
    writers = {slot: call for call in calls for slot in call.instruction.outputs if slot is not None}
    readers: dict[int, int] = {}
    for call in calls:
        for slot in call.reads:
            if slot is not None:
                readers[slot] = readers.get(slot, 0) + 1

    def only_read_here(slot: int | None, operator: str) -> Call | None:
        """The call that gives a value, if it is of this operator and nobody else reads the value."""
        call = None if slot is None else writers.get(slot)
        if not isinstance(call, Call) or slot in program.outputs or readers.get(slot or 0) != 1:
            return None
        instruction = call.instruction
        return call if (instruction.domain, instruction.operator) == ("", operator) else None

    made: dict[int, Call] = {}
    dropped: set[int] = set()
    for call in calls:
        if not isinstance(call, Call) or (call.instruction.domain, call.instruction.operator) != ("", "Mul"):
            continue
        for swish, other in (call.instruction.inputs, call.instruction.inputs[::-1]):
            product = only_read_here(swish, "Mul")
            if product is None or id(product) in dropped:
                continue
            for x, gate in (product.instruction.inputs, product.instruction.inputs[::-1]):
                sigmoid = only_read_here(gate, "Sigmoid")
                if sigmoid is not None and sigmoid.instruction.inputs == (x,):
                    instruction = evolve(
                        call.instruction, domain=DOMAIN, operator="GatedSilu", version=1, inputs=(x, other)
                    )
                    operator = GatedSilu(make_node(instruction, program))
                    made[id(call)] = Call(call.program, instruction, operator, call.fallback)
                    dropped.update((id(product), id(sigmoid)))
                    break
            if id(call) in made:
                break
    return [made.get(id(call), call) for call in calls if id(call) not in dropped]


def _join_products(calls: Calls) -> Calls:
    """Products of one input, such as those of query, key and value, to one product with wider weights."""
    groups: dict[tuple[object, ...], list[Call]] = {}
    for call in calls:
        if isinstance(call, Call) and type(call.operator) is IntegerProduct:
            groups.setdefault((call.instruction.inputs[0], *call.operator.format), []).append(call)
    joined: dict[int, Call] = {}
    dropped: set[int] = set()
    for members in groups.values():
        products = [call.operator for call in members if isinstance(call.operator, IntegerProduct)]
        if len(members) > 1 and JoinedProducts.fits(products):
            joined[id(members[0])] = _one_call(members, products)
            dropped.update(id(call) for call in members[1:])
    return [joined.get(id(call), call) for call in calls if id(call) not in dropped]


def _one_call(members: Sequence[Call], products: Sequence[IntegerProduct]) -> Call:
    first = members[0]
    instruction = evolve(
        first.instruction,
        domain=DOMAIN,
        operator="JoinedMatMulNBits",
        version=1,
        name=", ".join(call.instruction.name for call in members),
        inputs=first.instruction.inputs[:1],
        outputs=tuple(call.instruction.outputs[0] for call in members),
    )
    return Call(first.program, instruction, JoinedProducts(products), first.fallback)
