"""A decision that may be "no" returns its reason."""

from __future__ import annotations

from typing import Literal

from attrs import frozen


@frozen
class Accepted:
    """Yes. `note` may say under which terms, for `explain`."""

    note: str = ""

    def __bool__(self) -> Literal[True]:
        return True


@frozen
class Declined:
    """No, because of `reason`; `remedy` is what a user can change about it."""

    reason: str
    remedy: str = ""

    def __bool__(self) -> Literal[False]:
        return False

    def __str__(self) -> str:
        return f"{self.reason} ({self.remedy})" if self.remedy else self.reason


Answer = Accepted | Declined
