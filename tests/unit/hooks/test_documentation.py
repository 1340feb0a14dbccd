"""The page on plugins names every hook, descriptor and version that there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenmill.hooks.kinds import KINDS, Kind
from tokenmill.hooks.markers import API_VERSION

PAGE = (Path(__file__).parents[3] / "docs" / "plugins.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.hook)
def test_every_hook_is_in_the_table_with_its_descriptor(kind: Kind) -> None:
    assert f"| `{kind.hook}` | `{kind.descriptor.__name__}` |" in PAGE


def test_the_current_version_has_its_line() -> None:
    assert "| {}.{} |".format(*API_VERSION) in PAGE
