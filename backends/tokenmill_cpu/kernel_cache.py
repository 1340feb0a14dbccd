"""Where compiled kernels are kept between starts.

numba notices an edit of the file that holds a cached function, and misses one of a module that it imports. The folder is
therefore named by everything that kernels are made of; numba itself keeps processors apart.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import llvmlite
import numba
from numba.core import config
from tokenmill.home import home

_turn = threading.RLock()


@cache
def cache_folder() -> Path | None:
    """The folder of this version of the kernels; None when it cannot be written."""
    package = Path(__file__).parent
    digest = hashlib.sha256(f"numba {numba.__version__}, llvmlite {llvmlite.__version__}".encode())
    for source in sorted((*package.glob("*.py"), *package.glob("kernels/**/*.py"), *package.glob("simd/**/*.py"))):
        digest.update(f"{source.relative_to(package)}\0".encode())
        digest.update(source.read_bytes())
    folder = home() / "kernels" / digest.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
    except OSError:
        return None
    return folder


@contextmanager
def compiling() -> Iterator[bool]:
    """Compile one at a time, with numba's cache in our folder; gives whether there is one."""
    folder = cache_folder()
    with _turn:
        before = config.CACHE_DIR
        config.CACHE_DIR = str(folder or "")
        try:
            yield folder is not None
        finally:
            config.CACHE_DIR = before
