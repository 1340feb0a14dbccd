"""A file of this machine that a reference names."""

from __future__ import annotations

import difflib
from pathlib import Path

from tokenmill.errors import SourceError


def has_suffix(reference: str, suffix: str) -> bool:
    """Whether it names a file of that kind; a directory may be called anything."""
    return reference.lower().endswith(suffix) and not Path(reference).expanduser().is_dir()


def existing(reference: str) -> Path:
    """The file. :raises SourceError: it is not there, or is no file; names the nearest one beside it."""
    path = Path(reference).expanduser()
    try:
        if path.is_file():
            return path
        beside = [other.name for other in path.parent.iterdir() if other.suffix == path.suffix]
    except OSError as error:
        raise SourceError(f"'{path}' cannot be opened", why=error.strerror or str(error)) from error
    close = difflib.get_close_matches(path.name, beside, n=1)
    raise SourceError(
        f"'{path}' is not a file",
        why=f"'{path.parent}' holds {', '.join(sorted(beside)[:12]) or f'no {path.suffix} file'}",
        remedy=f"did you mean '{path.parent / close[0]}'?" if close else "correct the path",
    )
