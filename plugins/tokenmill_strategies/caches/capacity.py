"""The refusal of a step that does not fit."""

from __future__ import annotations

from tokenmill.contracts.step import Step
from tokenmill.errors import CapacityError


def check_capacity(step: Step, capacity: int | None) -> None:
    """:raises CapacityError: with the numbers and the setting to raise."""
    if capacity is not None and step.mask_length > capacity:
        raise CapacityError(
            f"{step.rows} tokens behind {step.position_start} make {step.mask_length}, the cache holds {capacity}",
            remedy="raise cache.max_len, shorten the text, or rewind",
        )
