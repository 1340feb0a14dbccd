"""A known model by its name."""

from __future__ import annotations

from tokenmill.contracts.answers import Accepted, Answer, Declined
from tokenmill.contracts.sourcing import Progress
from tokenmill.errors import SourceError

from tokenmill_strategies.sources.pinned import ALIASES


class AliasSource:
    """Replaces a name by the reference that it stands for."""

    name = "alias"

    def __init__(self, options: None = None) -> None:
        del options

    def accepts(self, reference: str) -> Answer:
        return Accepted(ALIASES[reference]) if reference in ALIASES else Declined("it is no known name")

    def resolve(self, reference: str, progress: Progress) -> str:
        if reference not in ALIASES:
            raise SourceError(f"'{reference}' is no known name", remedy=f"known names: {', '.join(sorted(ALIASES))}")
        return ALIASES[reference]
