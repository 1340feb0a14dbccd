"""A directory that holds a decoder."""

from __future__ import annotations

from pathlib import Path

from tokenmill.contracts.answers import Accepted, Answer, Declined
from tokenmill.contracts.sourcing import Progress
from tokenmill.errors import ModelFileError, SourceError
from tokenmill.model.locating import locate


class DirectorySource:
    """Takes a directory as it is, if one file in it is the decoder."""

    name = "directory"

    def __init__(self, options: None = None) -> None:
        del options

    def accepts(self, reference: str) -> Answer:
        return Accepted() if Path(reference).expanduser().is_dir() else Declined("no directory has that name")

    def resolve(self, reference: str, progress: Progress) -> Path:
        """The directory itself: what lies beside the decoder belongs to the model.

        :raises SourceError: no file, or more than one, may be the decoder.
        """
        directory = Path(reference).expanduser()
        try:
            locate(directory)
        except ModelFileError as error:
            raise SourceError(error.what, why=error.why, remedy=error.remedy) from error
        return directory
