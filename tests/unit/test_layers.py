"""Imports point down only, and what only lists plugins stays light."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE_ROOTS = [ROOT / "core", ROOT / "plugins", ROOT / "backends"]

#: Bottom to top: a module imports from its own layer and from lower ones. A longer prefix goes before a shorter one.
LAYERS: list[set[str]] = [
    {"errors", "trace", "home"},
    {"model"},
    {"contracts", "hooks.markers"},
    {"settings", "hooks"},
    {"session"},
    {"config", "decisions", "host_fallback", "selection", "references", "assembly"},
    {"generation"},
    {""},  # the public face: `tokenmill` itself and every module that is named nowhere else
    {"cli", "conformance"},
]
#: What a plugin may import of the core.
FOR_PLUGINS = {"errors", "trace", "home", "model", "contracts", "hooks.markers"}

HEAVY = ["numba", "cupy", "onnx", "onnx_ir", "onnx.reference", "sympy", "tokenizers", "gguf"]


def modules(*roots: Path) -> dict[str, Path]:
    found = {}
    for root in roots:
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules(*SOURCE_ROOTS)
PLUGIN_PACKAGES = sorted({name.split(".")[0] for name in MODULES} - {"tokenmill"})


def imports(name: str) -> Iterator[tuple[str, int]]:
    """Every module that a module imports, wherever in the file, with the line."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                yield (submodule if submodule in MODULES else source), node.lineno


def within(name: str) -> str:
    """`tokenmill.hooks.registry` -> `hooks.registry`."""
    return name.partition(".")[2]


def belongs(inner: str, prefix: str) -> bool:
    return inner == prefix or inner.startswith(f"{prefix}.")


def layer(name: str) -> int:
    inner = within(name)
    named = ((prefix, rank) for rank, group in enumerate(LAYERS) for prefix in group if prefix)
    matches = [(len(prefix), rank) for prefix, rank in named if belongs(inner, prefix)]
    return max(matches)[1] if matches else next(rank for rank, group in enumerate(LAYERS) if "" in group)


CORE = sorted(name for name in MODULES if name.split(".")[0] == "tokenmill")


@pytest.mark.parametrize("name", CORE)
def test_the_core_imports_downwards_and_no_plugin(name: str) -> None:
    for imported, line in imports(name):
        top = imported.split(".")[0]
        assert top not in PLUGIN_PACKAGES, f"{name}:{line} imports the plugin {imported}"
        if top == "tokenmill":
            assert layer(imported) <= layer(name), f"{name}:{line} imports upwards: {imported}"


@pytest.mark.parametrize("name", sorted(name for name in MODULES if name.split(".")[0] in PLUGIN_PACKAGES))
def test_a_plugin_imports_itself_and_the_contracts(name: str) -> None:
    own = name.split(".")[0]
    for imported, line in imports(name):
        top = imported.split(".")[0]
        assert top == own or top not in PLUGIN_PACKAGES, f"{name}:{line} imports another plugin: {imported}"
        if top == "tokenmill":
            allowed = any(belongs(within(imported), prefix) for prefix in FOR_PLUGINS)
            assert allowed, f"{name}:{line} imports {imported}"


def test_the_rules_see_an_upward_import() -> None:
    assert layer("tokenmill.hooks.registry") > layer("tokenmill.hooks.markers") > layer("tokenmill.model.graph")
    assert layer("tokenmill.cli.main") > layer("tokenmill") > layer("tokenmill.assembly")
    assert layer("tokenmill.assembly") > layer("tokenmill.session.steps") > layer("tokenmill.hooks.registry")
    assert "tokenmill.errors" in {found for found, _ in imports("tokenmill.config")}


def loaded_by(code: str) -> set[str]:
    """Heavy modules in a fresh interpreter after it ran some code."""
    report = f"import sys, json\n{code}\nsys.stderr.write(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    found = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    return set(json.loads(found.stderr.splitlines()[-1]))


def test_the_measurement_sees_a_heavy_import() -> None:
    assert "onnx" in loaded_by("import onnx")


def test_importing_tokenmill_is_light() -> None:
    assert loaded_by("import tokenmill") == set()


@pytest.mark.parametrize("arguments", [["plugins"], ["plugins", "--verbose"], ["plugins", "--json"], ["--help"]])
def test_the_command_line_is_light(arguments: list[str]) -> None:
    assert loaded_by(f"from tokenmill.cli.main import main\nassert main({arguments!r}) == 0") == set()


@pytest.mark.parametrize("package", [package for package in PLUGIN_PACKAGES if f"{package}.plugin" in MODULES])
def test_describing_a_plugin_is_light(package: str) -> None:
    assert loaded_by(f"import {package}.plugin") == set()
