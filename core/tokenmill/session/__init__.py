"""One decoder's running state."""

from tokenmill.session.session import Session
from tokenmill.session.stats import SessionStats

__all__ = ["Session", "SessionStats"]
