from __future__ import annotations

from attrs import field, frozen
from attrs.validators import ge


@frozen(kw_only=True)
class GoodOptions:
    level: int = field(default=1, validator=ge(1))
    threads: int | None = None
