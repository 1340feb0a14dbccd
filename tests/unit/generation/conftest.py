"""Models that are loaded once. `directory` is that of `tests/unit/conftest.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenmill
from tokenmill.api import Model

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="session")
def model(directory: Path) -> Iterator[Model]:
    with tokenmill.load(directory, backend="reference") as loaded:
        yield loaded


@pytest.fixture(scope="session")
def textless() -> Iterator[Model]:
    """The same decoder without a tokenizer."""
    with tokenmill.load(DATA / "zoo" / "llama-fp32", backend="reference") as loaded:
        yield loaded
