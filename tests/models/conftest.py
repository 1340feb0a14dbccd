"""Real models, built once into the cache folder by `tests/models/build.sh`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenmill.home import home


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
