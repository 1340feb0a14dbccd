"""A directory of the cache: made once, whole or not at all, and checked before it is used again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenmill.contracts.sourcing import Progress
from tokenmill.errors import SourceError

from tokenmill_strategies.sources.lock import alone

#: Written last: what was made, from what, and every file's size, time and content.
SEAL = ".complete.json"


def kept(directory: Path, identity: Mapping[str, Any], make: Callable[[Path], None], progress: Progress) -> Path:
    """The directory, made by `make` unless it is there, whole and of this identity.

    `make` fills a directory beside it that takes the name only when it is complete, so that an interruption leaves
    nothing behind that could be taken for the result. Two processes make it once.

    :param identity: what it is made from, as JSON; another one makes it anew.
    :raises SourceError: the cache cannot be written, or what `make` raises.
    """
    if intact(directory, identity):
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with alone(directory.with_name(f"{directory.name}.lock"), lambda: _wait(directory, progress)):
            if not intact(directory, identity):
                _make(directory, identity, make)
    except OSError as error:
        raise SourceError(
            f"'{directory}' cannot be written",
            why=error.strerror or str(error),
            remedy="make room there, or choose another folder with TOKENMILL_HOME",
        ) from error
    return directory


def intact(directory: Path, identity: Mapping[str, Any]) -> bool:
    """Whether it is complete and unchanged. A file whose time has changed is read and compared by content."""
    try:
        seal = json.loads((directory / SEAL).read_bytes())
        return bool(seal["identity"] == json.loads(json.dumps(identity))) and all(
            _unchanged(directory / name, *facts) for name, facts in seal["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def sha256(file: Path) -> str:
    """In hexadecimal digits."""
    with file.open("rb") as stream:
        digest = hashlib.sha256()
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _unchanged(file: Path, size: int, modified: int, digest: str) -> bool:
    facts = file.stat()
    return facts.st_size == size and (facts.st_mtime_ns == modified or sha256(file) == digest)


def _make(directory: Path, identity: Mapping[str, Any], make: Callable[[Path], None]) -> None:
    part = directory.with_name(f"{directory.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        make(part)
        _seal(part, identity)
        # A process that still maps the old files keeps them until it ends.
        shutil.rmtree(directory, ignore_errors=True)
        part.rename(directory)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _seal(directory: Path, identity: Mapping[str, Any]) -> None:
    files = {}
    for file in sorted(path for path in directory.rglob("*") if path.is_file()):
        with file.open("rb+") as stream:
            os.fsync(stream.fileno())
        facts = file.stat()
        files[file.relative_to(directory).as_posix()] = [facts.st_size, facts.st_mtime_ns, sha256(file)]
    with (directory / SEAL).open("w", encoding="utf-8") as seal:
        json.dump({"identity": dict(identity), "files": files}, seal, indent=1)
        seal.flush()
        os.fsync(seal.fileno())


def _wait(directory: Path, progress: Progress) -> None:
    progress.start(f"waiting for another process that makes {directory.name}")
    progress.finish()
