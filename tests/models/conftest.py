"""Real models, built once into the cache folder by `tests/models/build.sh`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenmill.config import load_config
from tokenmill.errors import SourceError
from tokenmill.home import home
from tokenmill.hooks.registry import default_registry
from tokenmill.references import resolve_model


@pytest.fixture(scope="session")
def built_model() -> Callable[[str], Path]:
    """The directory of a built model. Skips where it has not been built; on CI that is a failure."""

    def directory(name: str) -> Path:
        path = home() / "models" / name
        if not (path / "genai_config.json").exists():
            message = f"{path} is missing: run tests/models/build.sh {name}"
            if os.environ.get("CI"):
                pytest.fail(message)
            pytest.skip(message)
        return path

    return directory


@pytest.fixture(scope="session")
def default_model() -> Path:
    """Downloaded and imported once, into the cache of models."""
    try:
        return resolve_model("smollm2", load_config(), default_registry())
    except SourceError as error:
        if "cannot be reached" in str(error) and not os.environ.get("CI"):
            pytest.skip(str(error))
        raise
