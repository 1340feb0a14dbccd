"""One forward pass as a frozen value: what goes in, where it stands, and what is wanted of the logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

Want = Literal["token", "last", "rows"]
StepKind = Literal["prefill", "decode", "verify"]


@frozen(eq=False)
class Step:
    """A forward pass over `rows` tokens of each sequence.

    :param tokens: `[batch, rows] int64`. With embeddings as sequence source they still give the step's length.
    :param past_lengths: `[batch] int32`, tokens that each sequence already holds. Batch 1 is enforced for now.
    :param kind: `decode` is one token that is not being verified; `verify` may also be one token; the rest is `prefill`.
    :param want: `token`, the argmax of the last row; `last`, the last row; `rows`, every row.
    :param routed: values of the ports that no router claimed, by exact port name.
    """

    tokens: npt.NDArray[np.int64]
    past_lengths: npt.NDArray[np.int32]
    kind: StepKind
    want: Want
    routed: Mapping[str, npt.NDArray[np.generic]] = field(factory=dict)

    @property
    def batch(self) -> int:
        return int(self.tokens.shape[0])

    @property
    def rows(self) -> int:
        """Query rows: tokens per sequence that this step runs."""
        return int(self.tokens.shape[1])

    @property
    def position_start(self) -> int:
        """Position of the first query row."""
        return int(self.past_lengths[0])

    @property
    def mask_length(self) -> int:
        """Past and query rows together: the logical length of the attention mask, and of the cache after commit."""
        return self.position_start + self.rows

    @property
    def plan_key(self) -> tuple[int, int, Want]:
        """What a plan depends on. Lengths are values in its argument block, never part of the key."""
        return self.batch, self.rows, self.want
