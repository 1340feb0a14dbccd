"""Which types of cached values a strategy keeps."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from tokenmill.contracts.answers import Declined
from tokenmill.contracts.cache import CacheGroup

#: Types that attention appends to in place.
ATTENTION_TYPES = frozenset(map(np.dtype, (np.float32, np.float16, ml_dtypes.bfloat16)))


def declined_type(group: CacheGroup, wanted: str) -> Declined | None:
    """The refusal when another type than the graph's own is wanted.

    :param wanted: `auto`, or the name of a numpy type.
    """
    for port in group.ports:
        if wanted not in ("auto", port.dtype.name):
            return Declined(
                f"'{port.pair.past}' is {port.dtype.name}, and {wanted} is wanted",
                "export the model with a cache of that type, or leave cache.dtype at auto",
            )
    return None
