"""The last step's hidden rows, for whoever proposes tokens from them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from attrs import frozen

#: Rows to keep of one step: a rewind into it (rejected draft tokens) then still finds its row. Drafts are shorter.
KEPT_ROWS = 64


@frozen(eq=False)
class HiddenRows:
    """:param rows: `[rows, width] float32`.
    :param end: position behind the last row.
    """

    rows: npt.NDArray[np.float32]
    end: int

    @classmethod
    def of(cls, rows: npt.NDArray[np.generic], end: int) -> HiddenRows:
        return cls(np.array(rows[-KEPT_ROWS:], dtype=np.float32), end)

    def row(self, length: int) -> npt.NDArray[np.float32] | None:
        """The row of the last of `length` tokens; None when it was not kept."""
        index = len(self.rows) - 1 - (self.end - length)
        return self.rows[index] if length <= self.end and index >= 0 else None
