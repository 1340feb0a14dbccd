"""Each test breaks something; behind each, the process still generates what it generated before."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenmill
from tokenmill.api import Model

PROMPT, LIMIT = "The mill", {"max_new_tokens": 4, "ignore_eos": True}


@pytest.fixture(scope="session")
def sound(directory: Path) -> Iterator[Model]:
    """A model that stays loaded through all tests."""
    with tokenmill.load(directory, backend="reference", cache={"max_len": 256}) as model:
        yield model


@pytest.fixture(scope="session")
def expected(sound: Model) -> tuple[int, ...]:
    return sound.generate(PROMPT, **LIMIT).tokens


@pytest.fixture(autouse=True)
def usable_afterwards(sound: Model, directory: Path, expected: tuple[int, ...]) -> Iterator[None]:
    yield
    assert sound.generate(PROMPT, **LIMIT).tokens == expected
    with tokenmill.load(directory, backend="reference") as fresh:
        assert fresh.generate(PROMPT, **LIMIT).tokens == expected


@pytest.fixture
def copy(directory: Path, tmp_path: Path) -> Path:
    """A copy of the model's directory, to be broken."""
    return shutil.copytree(directory, tmp_path / "broken")
