"""Token ids as a step needs them, and how many there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.errors import StepError
from tokenmill.model.decoder import Decoder


def vocabulary(decoder: Decoder) -> int | None:
    """Width of the logits: the graph's, else what the metadata say, else None."""
    port = decoder.graph.output(decoder.io.logits_output or "")
    width = port.shape[-1] if port is not None and port.shape else None
    return width if isinstance(width, int) and width > 0 else decoder.metadata.vocab_size


def token_ids(tokens: Any, vocabulary: int | None) -> npt.NDArray[np.int64]:
    """`[tokens] int64`.

    :param vocabulary: the bound that ids have to stay below; None checks nothing.
    :raises StepError: none at all, something else than a list of integers, or an id out of the vocabulary.
    """
    given = np.asarray(tokens)
    if given.size == 0:
        raise StepError("a step needs at least one token", remedy="pass the tokens that the session does not hold yet")
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise StepError(
            f"tokens are {given.dtype.name}{list(given.shape)}", why="a flat list of integers is needed, one sequence"
        )
    ids = given.astype(np.int64, copy=False)
    if vocabulary is not None and (ids.min() < 0 or ids.max() >= vocabulary):
        index = int(((ids < 0) | (ids >= vocabulary)).argmax())
        raise StepError(
            f"token {int(ids[index])} at index {index} is out of the vocabulary",
            why=f"ids go from 0 to {vocabulary - 1}",
            remedy="use the model's own tokenizer",
        )
    return ids
