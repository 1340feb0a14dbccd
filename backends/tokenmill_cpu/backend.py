"""The CPU as a device."""

from __future__ import annotations

from attrs import define
from tokenmill.contracts.answers import Accepted, Answer, Declined
from tokenmill.contracts.fallback import HostFallback
from tokenmill.contracts.sourcing import NoProgress, Progress
from tokenmill.model.graph import OnnxGraph
from tokenmill.model.program import Instruction, Program
from tokenmill.model.roles import IoSpec

from tokenmill_cpu.cores import usable_cores
from tokenmill_cpu.executable import CpuExecutable
from tokenmill_cpu.features import best_level, level_answer
from tokenmill_cpu.frame import Frame
from tokenmill_cpu.last_row import narrow_projection
from tokenmill_cpu.launch import Kernel
from tokenmill_cpu.operators.operator import Node
from tokenmill_cpu.options import CpuOptions
from tokenmill_cpu.pool import decode_pool
from tokenmill_cpu.preparing import build_plan


@define(eq=False)
class CpuBackend:
    """Prepares graphs for this machine's cores.

    :param fallback: leaf operators on the host, for whatever has no kernel.
    """

    options: CpuOptions
    fallback: HostFallback

    name = "cpu"

    def probe(self) -> Answer:
        level = self._level
        answer = level_answer(level)
        return Accepted(f"{level}, {self._threads} threads") if answer else answer

    @property
    def _level(self) -> str:
        return best_level() if self.options.instructions == "auto" else self.options.instructions

    @property
    def _threads(self) -> int:
        return self.options.threads or usable_cores()

    def compile(self, graph: OnnxGraph, io: IoSpec | None = None, progress: Progress | None = None) -> CpuExecutable:
        """Pack weights and compile the kernels that the graph needs.

        :raises UnsupportedOperatorError: names every operator that is missing, those of subgraphs included.
        """
        program = graph.program
        progress = progress or NoProgress()
        progress.start("preparing kernels and weights", sum(1 for _ in program.walk()))

        pool = decode_pool()
        pool.reserve(self._threads)
        frame = Frame(pool, self._threads)

        def make_node(instruction: Instruction, program: Program) -> Node:
            progress.advance()
            return Node(instruction, program, self._level, frame, _address)

        try:
            plan = build_plan(program, self.fallback, make_node, frame)
        finally:
            progress.finish()
        narrow_projection(plan, io.logits_output if io else None)
        return CpuExecutable(graph, plan, pool, self._threads, self._level)


def _address(kernel: Kernel) -> int:
    return kernel.address


def create(options: CpuOptions | None, fallback: HostFallback | None) -> CpuBackend:
    """Factory named by the descriptor."""
    return CpuBackend(options or CpuOptions(), fallback or _NoFallback())


class _NoFallback:
    """Stands in where no plugin offers host operators."""

    def supports(self, domain: str, operator: str, version: int) -> Answer:
        return Declined("no plugin offers host operators", "enable the plugin 'reference'")

    def bind(self, instruction: Instruction):  # type: ignore[no-untyped-def]
        raise AssertionError(f"{instruction.title} was declined before")
