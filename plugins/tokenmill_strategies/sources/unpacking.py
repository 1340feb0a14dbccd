"""A wheel's files, written where they belong and nowhere else."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from tokenmill.contracts.sourcing import Progress
from tokenmill.errors import SourceError

_CHUNK = 1 << 20


def unpack(wheel: Path, directory: Path, progress: Progress) -> None:
    """Write every file and check it against the wheel's own RECORD (the binary distribution format).

    :raises SourceError: no zip file, a path that leads outside, a link, or content other than recorded.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            for member in members:
                _check_place(wheel, member, directory)
            recorded = _recorded(wheel, archive)
            progress.start(f"unpacking {wheel.name}", float(sum(member.file_size for member in members)))
            try:
                for member in members:
                    _write(wheel, archive, member, directory / member.filename, recorded.get(member.filename), progress)
            finally:
                progress.finish()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise _broken(wheel, str(error)) from error


def _check_place(wheel: Path, member: zipfile.ZipInfo, directory: Path) -> None:
    path = PurePosixPath(member.filename)
    leads_outside = path.is_absolute() or ".." in path.parts or "\\" in member.filename or ":" in member.filename
    if leads_outside or not (directory / path).resolve().is_relative_to(directory.resolve()):
        raise _broken(wheel, f"its file '{member.filename}' would be written outside of the directory")
    if stat.S_ISLNK(member.external_attr >> 16):
        raise _broken(wheel, f"its file '{member.filename}' is a link")


def _recorded(wheel: Path, archive: zipfile.ZipFile) -> dict[str, str]:
    """The sha256 of each file, as `base64` without padding; RECORD and its signatures have none."""
    records = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD") and name.count("/") == 1]
    if len(records) != 1:
        raise _broken(wheel, f"it has {len(records)} RECORD files")
    text = archive.read(records[0]).decode("utf-8", errors="replace")
    rows = [row for row in csv.reader(io.StringIO(text)) if len(row) == 3]
    return {name: digest.removeprefix("sha256=") for name, digest, _ in rows if digest.startswith("sha256=")}


def _write(
    wheel: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path, recorded: str | None, progress: Progress
) -> None:
    digest = hashlib.sha256()
    path.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(member) as source, path.open("xb") as target:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            target.write(chunk)
            progress.advance(float(len(chunk)))
    found = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    signature = path.name in ("RECORD", "RECORD.jws", "RECORD.p7s")
    if recorded != found and not (recorded is None and signature):
        raise _broken(wheel, f"the sha256 of '{member.filename}' is {found}, its RECORD says {recorded or 'nothing'}")


def _broken(wheel: Path, why: str) -> SourceError:
    return SourceError(f"'{wheel.name}' is no sound wheel", why=why, remedy="the model cannot be taken from it")
