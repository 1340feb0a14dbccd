"""Which instruction sets kernels may use.

What counts is the set that numba generates code for, not what the processor reports: a machine instruction outside of it
cannot be selected and would abort the interpreter.
"""

from __future__ import annotations

from functools import cache

from tokenmill.contracts.answers import Accepted, Answer, Declined

from tokenmill_cpu.options import LEVELS

_NEEDS = {
    "avx512_vnni": ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"),
    "portable": (),
}


@cache
def generated_features() -> frozenset[str]:
    """Features that numba's code generation is set to, in LLVM's names."""
    from numba.core.registry import cpu_target

    enabled = cpu_target.target_context.codegen().magic_tuple()
    listed = ",".join(str(part) for part in enabled).split(",")
    return frozenset(item[1:] for item in listed if item.startswith("+"))


def level_answer(level: str) -> Answer:
    """Whether kernels of a level can be compiled here."""
    missing = [name for name in _NEEDS[level] if name not in generated_features()]
    if missing:
        return Declined(
            f"numba generates no code for {', '.join(missing)} here",
            "leave instructions at 'auto', or check NUMBA_CPU_NAME and NUMBA_CPU_FEATURES",
        )
    return Accepted(f"needs {', '.join(_NEEDS[level])}" if _NEEDS[level] else "runs everywhere")


def best_level() -> str:
    """The highest level that kernels can be compiled for here."""
    return next(level for level in LEVELS if level_answer(level))
