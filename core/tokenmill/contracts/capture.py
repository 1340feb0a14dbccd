"""Whether a step may be recorded and replayed, and what ends a recording. The controller that obeys is in the core."""

from __future__ import annotations

from typing import Literal, Protocol

from attrs import frozen

from tokenmill.contracts.answers import Answer

CaptureEvent = Literal["prefill", "verify", "rewind", "reset", "grow", "error", "retired", "close"]


@frozen
class CaptureFacts:
    """What a policy may decide by: structure and settings, never a model's name.

    :param device_captures: the executable's device can record a step.
    :param kv_owned: the session owns its KV.
    :param unbound_outputs: reasons why outputs have no fixed buffer.
    :param growing_inputs: reasons why inputs expose a growing length.
    :param requested: the option, else the environment, else None.
    """

    device_captures: bool
    kv_owned: bool
    unbound_outputs: tuple[str, ...] = ()
    growing_inputs: tuple[str, ...] = ()
    requested: bool | None = None


class CapturePolicy(Protocol):
    """Made by the descriptor's factory: `factory(options)`."""

    @property
    def name(self) -> str: ...

    def decide(self, facts: CaptureFacts) -> Answer: ...

    def on(self, event: CaptureEvent) -> Literal["keep", "drop"]:
        """What happens to recordings. `error` and `close` drop whatever is answered."""
