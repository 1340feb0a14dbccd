"""`structural`: a step is captured when the device can and the structure lets it, never by a model's name."""

from __future__ import annotations

from typing import Literal

from attrs import frozen
from tokenmill.contracts.answers import Accepted, Answer, Declined
from tokenmill.contracts.capture import CaptureEvent, CaptureFacts


@frozen(kw_only=True)
class StructuralOptions:
    """:param retain_on_rewind: keep recordings over a rewind, which changes contents only; False records again."""

    retain_on_rewind: bool = True


class Structural:
    """The policy."""

    name = "structural"

    def __init__(self, options: StructuralOptions | None = None) -> None:
        self._options = options or StructuralOptions()

    def decide(self, facts: CaptureFacts) -> Answer:
        """An explicit no is obeyed; an explicit yes yields to what the structure does not let be recorded."""
        if facts.requested is False:
            return Declined("capture is switched off", "set capture.enabled = true, or leave it unset")
        if not facts.device_captures:
            return Declined("the device does not record steps", "use another backend")
        if not facts.kv_owned:
            return Declined("the cache is borrowed, and its buffers may change between steps")
        obstacles = (*facts.unbound_outputs, *facts.growing_inputs)
        if obstacles:
            return Declined("; ".join(obstacles))
        return Accepted("asked for" if facts.requested else "the device records, and the session owns its cache")

    def on(self, event: CaptureEvent) -> Literal["keep", "drop"]:
        return "keep" if event == "rewind" and self._options.retain_on_rewind else "drop"
