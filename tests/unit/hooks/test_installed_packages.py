"""Throw-away packages, built and installed with pip, seen by a fresh interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PACKAGES = Path(__file__).parents[1] / "plugin_packages"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory into which pip has installed every package of `plugin_packages`, without network."""
    target = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    sources = [str(path) for path in sorted(PACKAGES.iterdir()) if (path / "pyproject.toml").exists()]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", str(target), *sources], check=True)
    return target


def run(installed: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL__")}
    environment = {**kept, "PYTHONPATH": str(installed), **env}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, timeout=60)


def cli(installed: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run(installed, "-m", "tokenmill.cli.main", *arguments, **env)


@pytest.fixture(scope="session")
def records(installed: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """What `tokenmill plugins --json` says, by plugin and distribution."""
    found = cli(installed, "plugins", "--json")
    assert found.returncode == 0, found.stderr
    return {(item["name"], item["distribution"]): item for item in json.loads(found.stdout)["plugins"]}


def test_a_good_plugin_is_listed_with_all_it_declares(records: dict[tuple[str, str], dict[str, Any]]) -> None:
    good = records["good", "mill-good"]
    assert (good["state"], good["version"], good["reason"], good["problems"]) == ("active", "1.4.0", "", [])
    assert good["hooks"] == ["tokenmill_backends", "tokenmill_trace_sinks"]
    assert good["api"] == [1, 0]
    assert good["contributions"][0]["capabilities"] == ["any_graph"]
    assert good["builtin"] is False and records["reference", "tokenmill"]["builtin"] is True


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises-on-import", "RuntimeError: the driver library is too old"),
        ("exits-on-import", "SystemExit: no licence found"),
        ("no-module", "ModuleNotFoundError: No module named 'mill_broken.nowhere'"),
        ("other-major", "it was written for plugin API 2.0; this tokenmill offers 1.0, and majors must agree"),
        ("newer-minor", "it needs plugin API 1.99; this tokenmill offers 1.0: upgrade tokenmill"),
        ("undeclared", "it declares no TOKENMILL_API; write TOKENMILL_API = (1, 0) in the plugin module"),
        ("text-version", "TOKENMILL_API is '1.0'; it has to be a tuple of two integers, (major, minor)"),
        ("misspelt", "'tokenmill_backend' is no hook of tokenmill"),
        ("wrong-argument", "Argument(s) {'device'}"),
    ],
)
def test_a_broken_plugin_fails_with_its_reason(
    records: dict[tuple[str, str], dict[str, Any]], name: str, reason: str
) -> None:
    record = records[name, "mill-broken"]
    assert record["state"] == "failed"
    assert reason in record["reason"]
    assert record["contributions"] == []


def test_a_failure_keeps_the_end_of_the_plugins_own_traceback(records: dict[tuple[str, str], dict[str, Any]]) -> None:
    details = records["raises-on-import", "mill-broken"]["details"]
    assert "raises_on_import.py" in details and "_prepare()" in details
    assert "tokenmill/hooks" not in details


def test_a_bad_hook_loses_only_itself(records: dict[tuple[str, str], dict[str, Any]]) -> None:
    half = records["half", "mill-broken"]
    assert half["state"] == "active"
    assert [item["name"] for item in half["contributions"]] == ["survivor"]
    reasons = {problem["subject"]: problem["reason"] for problem in half["problems"]}
    assert reasons == {
        "tokenmill_backends": "it raised ValueError: no device list",
        "tokenmill_model_sources": "it returned a dict instead of a list of ModelSourceDescriptor",
        "tokenmill_step_routers": "its list holds a BackendDescriptor; expected StepRouterDescriptor",
    }


def test_a_function_without_the_marker_is_pointed_out(records: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert "not marked" in records["unmarked", "mill-broken"]["problems"][0]["reason"]


def test_two_strangers_with_one_name_are_both_reported(records: dict[tuple[str, str], dict[str, Any]]) -> None:
    for name, other in (("one", "two"), ("two", "one")):
        twin = records[f"twin-{name}", f"mill-twin-{name}"]
        assert twin["contributions"][0]["conflict"].startswith(
            f"conflicts with plugin 'twin-{other}' of mill-twin-{other}"
        )
        shared = records["shared-name", f"mill-twin-{name}"]
        assert shared["state"] == "failed" and f"of mill-twin-{other} 1.0" in shared["reason"]


def test_a_built_in_name_is_kept_by_the_built_in(records: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert "is built in" in records["impostor", "mill-impostor"]["contributions"][0]["conflict"]
    assert "is built in" in records["reference", "mill-impostor"]["reason"]
    built_in = records["reference", "tokenmill"]
    assert built_in["state"] == "active" and built_in["contributions"][0]["conflict"] == ""


def test_the_table_shows_states_and_reasons(installed: Path) -> None:
    found = cli(installed, "plugins")
    assert found.returncode == 0 and found.stderr == ""
    assert "raises-on-import failed: RuntimeError: the driver library is too old\n" in found.stdout
    assert "half * tokenmill_backends: it raised ValueError: no device list\n" in found.stdout
    assert "_prepare" not in found.stdout
    assert "_prepare" in cli(installed, "plugins", "--verbose").stdout


def test_the_environment_disables_by_plugin_and_by_distribution(installed: Path) -> None:
    disabled = {"TOKENMILL__PLUGINS__DISABLED": "good, mill-broken"}
    found = {
        item["name"]: item for item in json.loads(cli(installed, "plugins", "--json", **disabled).stdout)["plugins"]
    }
    assert found["good"]["state"] == "disabled"
    # Not even imported: it would have failed.
    assert found["raises-on-import"]["state"] == "disabled"
    assert found["twin-one"]["state"] == "active"


def test_a_configuration_file_disables(installed: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[plugins]\ndisabled = ["good"]\n')
    listed = cli(installed, "--config", str(file), "plugins", "--json")
    assert {item["name"]: item["state"] for item in json.loads(listed.stdout)["plugins"]}["good"] == "disabled"


SELECT = """
import sys
from tokenmill.assembly import select_backend
from tokenmill.config import load_config
from tokenmill.errors import TokenmillError
assert not any(name.startswith("mill_good.") for name in sys.modules)
try:
    backend, decision = select_backend(config=load_config(overrides=eval(sys.argv[1])))
    print("\\n".join(decision.lines()))
except TokenmillError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            {"backend.name": "good"},
            "BackendUnavailableError backend 'good' cannot run here: good: level 1, threads None, host operators",
        ),
        ({"backend.name": "good", "backend.options.good.level": 3, "backend.threads": 2}, "good: level 3, threads 2,"),
        (
            {"backend.name": "good", "backend.options.good.levle": 3},
            "ConfigError keyword: there is no key backend.options.good.levle; did you mean backend.options.good.level?",
        ),
        (
            {"backend.options": {"good": {"level": "high"}}},
            "ConfigError keyword: backend.options.good.level = 'high' cannot be used: expected an integer",
        ),
        (
            {"backend.options": {"good": {"level": 0}}},
            "backend.options.good.level = 0 cannot be used: 'level' must be >= 1: 0",
        ),
        ({"backend.name": "twin"}, "PluginError backend 'twin' cannot be chosen: the name conflicts"),
        ({"backend.name": "raises-on-import"}, "failed: RuntimeError: the driver library is too old"),
        ({"backend.name": "goood"}, "did you mean 'good'?"),
    ],
)
def test_asking_by_name_gives_the_reason(installed: Path, overrides: dict[str, Any], text: str) -> None:
    found = run(installed, "-c", SELECT, repr(overrides))
    assert text in found.stdout, found.stderr


def test_auto_asks_by_priority_and_keeps_every_answer(installed: Path) -> None:
    found = run(installed, "-c", SELECT, "{'plugins.disabled': ['cpu']}")
    chosen, first, second = found.stdout.splitlines()
    assert chosen == "backend: reference (from default)"
    assert first == "  good: declined, level 1, threads None, host operators of reference"
    assert second.startswith("  reference: accepted")


def test_environment_sets_a_plugins_own_option(installed: Path) -> None:
    found = run(installed, "-c", SELECT, "{'backend.name': 'good'}", TOKENMILL__BACKEND__OPTIONS__GOOD__LEVEL="7")
    assert "good: level 7," in found.stdout
    wrong = run(installed, "-c", SELECT, "{'backend.name': 'good'}", TOKENMILL__BACKEND__OPTIONS__GOOD__LEVEL="x")
    assert (
        "environment variable TOKENMILL__BACKEND__OPTIONS__GOOD__LEVEL: backend.options.good.level = 'x'"
        in wrong.stdout
    )
