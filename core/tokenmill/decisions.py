"""What was chosen at assembly, who was asked, and what each one answered."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from tokenmill.contracts.answers import Accepted, Answer, Declined
from tokenmill.errors import ConfigError, TokenmillError
from tokenmill.hooks.attributes import PLUGIN_FAILURES, reason_of
from tokenmill.settings import DEFAULT, Origin


@frozen
class Decision:
    """:param subject: what was decided: `backend`, `cache of <group>`, `capacity`, ...
    :param candidates: everybody who was asked, in order, with the answer.
    :param origin: where the choice came from.
    """

    subject: str
    chosen: str
    candidates: tuple[tuple[str, Answer], ...] = ()
    origin: Origin = DEFAULT

    def lines(self) -> list[str]:
        """The decision and every answer, one a line."""
        asked = [
            f"  {name}: {f'accepted {answer.note}'.rstrip() if isinstance(answer, Accepted) else f'declined, {answer}'}"
            for name, answer in self.candidates
        ]
        return [f"{self.subject}: {self.chosen} (from {self.origin})", *asked]


def answered(ask: Callable[[], Answer]) -> Answer:
    """A plugin's answer. One that raises or answers nonsense has declined; a wrong configuration stays an error."""
    try:
        found = ask()
    except ConfigError:
        raise
    except TokenmillError as error:
        return Declined(str(error))
    except PLUGIN_FAILURES as error:
        return Declined(f"it raised {reason_of(error)}")
    if not isinstance(found, (Accepted, Declined)):
        return Declined(f"it answered {found!r} instead of Accepted or Declined")
    return found


def refusals(candidates: tuple[tuple[str, Answer], ...] | list[tuple[str, Answer]]) -> str:
    """Every candidate's reason, for an error."""
    return "; ".join(f"{name}: {answer}" for name, answer in candidates if isinstance(answer, Declined))
