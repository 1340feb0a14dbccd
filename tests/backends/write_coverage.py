"""Runs the node tests on backends and writes `docs/coverage.md`, or prints a list of known failures.

python tests/backends/write_coverage.py                  # every recorded backend, writes the page
python tests/backends/write_coverage.py --list cpu       # failing cases in the format of known_failures/cpu.txt
python tests/backends/write_coverage.py --case test_add  # cases with this in their name, with what goes wrong
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from pathlib import Path

import onnx
from node_cases import failure, known_failures, load_cases, recorded_backends
from onnx.backend.test.case.test_case import TestCase

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"

_OPSET_GROUPS = ((1, 12), (13, 17), (18, 20), (21, 22), (23, 99))


def group(case: TestCase) -> str:
    """Domain and opset group of a case: those of its first node."""
    domain = case.model.graph.node[0].domain if case.model.graph.node else ""
    if domain not in ("", "ai.onnx"):
        return domain
    opset = next(entry.version for entry in case.model.opset_import if entry.domain in ("", "ai.onnx"))
    first, last = next(bounds for bounds in _OPSET_GROUPS if bounds[0] <= opset <= bounds[1])
    return f"ai.onnx, opset {first}-{last}" if last < 99 else f"ai.onnx, opset {first} and later"


def run(backend: str, cases: dict[str, TestCase]) -> dict[str, str]:
    """What went wrong, by case."""
    reasons = {name: failure(case, backend) for name, case in cases.items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def page(results: dict[str, dict[str, str]], cases: dict[str, TestCase]) -> str:
    backends = list(results)
    totals = Counter(group(case) for case in cases.values())
    lines = [
        "# Operator coverage",
        "",
        f"Cases of the ONNX project's node tests (`onnx.backend.test`, onnx {onnx.__version__}) that pass on",
        "each backend, with ONNX's own tolerances. Written by `python tests/backends/write_coverage.py` from a run.",
        "",
        f"| domain and opset | cases | {' | '.join(backends)} |",
        f"|---|--:|{'--:|' * len(backends)}",
    ]
    for name in sorted(totals, key=_order):
        passed = [totals[name] - sum(group(cases[case]) == name for case in results[backend]) for backend in backends]
        lines.append(f"| {name} | {totals[name]} | {' | '.join(map(str, passed))} |")
    passed = [len(cases) - len(results[backend]) for backend in backends]
    lines.append(f"| **all** | **{len(cases)}** | {' | '.join(f'**{count}**' for count in passed)} |")
    for backend in backends:
        known = known_failures(backend)
        lines += ["", f"## Failing on `{backend}`", ""]
        if not results[backend]:
            lines.append("None.")
        for name, reason in sorted(results[backend].items()):
            lines.append(f"- `{name}`: {known[name].reason if name in known else reason}")
    return "\n".join(lines) + "\n"


def _order(name: str) -> tuple[bool, int, str]:
    first = name.split(" opset ")[-1].split("-")[0].split(" ")[0]
    return not name.startswith("ai.onnx,"), int(first) if first.isdigit() else 0, name


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backends", nargs="*", help="default: those with a list of known failures")
    parser.add_argument("--list", action="store_true", help="print failing cases instead of writing the page")
    parser.add_argument("--case", default="", help="only cases with this in their name; writes nothing")
    arguments = parser.parse_args()
    cases = {name: case for name, case in load_cases().items() if arguments.case in name}
    results = {backend: run(backend, cases) for backend in arguments.backends or recorded_backends()}
    if arguments.list or arguments.case:
        for backend, reasons in results.items():
            print(f"# {backend}: {len(cases) - len(reasons)} of {len(cases)} pass")
            print("\n".join(f"{name}  {reason}" for name, reason in sorted(reasons.items())))
        return
    PAGE.write_text(page(results, cases))
    print(f"{PAGE.name}: " + ", ".join(f"{name} {len(cases) - len(reasons)}" for name, reasons in results.items()))


if __name__ == "__main__":
    main()
