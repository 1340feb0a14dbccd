"""The folder of caches: downloaded and converted models, compiled kernels."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def home(env: Mapping[str, str] | None = None) -> Path:
    """`TOKENMILL_HOME`, else `$XDG_CACHE_HOME/tokenmill`, else `~/.cache/tokenmill`. It need not exist yet.

    :param env: environment to read; None is the process's own.
    """
    env = os.environ if env is None else env
    if chosen := env.get("TOKENMILL_HOME"):
        return Path(chosen).expanduser().absolute()
    cache = env.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    root = Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache"
    return root / "tokenmill"
