"""Every error that tokenmill raises on purpose, in one hierarchy.

A message says what was refused, why (with the numbers), and what to change. An error of class `StepError` or
`ModelError` is raised before anything has moved; after an `ExecutionError` the session is as it was before the step.
"""

from __future__ import annotations


class TokenmillError(Exception):
    """Base of all errors of tokenmill.

    :param what: what was refused or failed, with the numbers.
    :param why: the reason, when it is not evident from `what`.
    :param remedy: the setting, export or call to change.
    """

    def __init__(self, what: str, *, why: str = "", remedy: str = "") -> None:
        self.what, self.why, self.remedy = what, why, remedy
        super().__init__(what, why, remedy)

    def __str__(self) -> str:
        text = f"{self.what}: {self.why}" if self.why else self.what
        return f"{text}; {self.remedy}" if self.remedy else text


# --- configuration and plugins ---------------------------------------------------------------------------------------


class ConfigError(TokenmillError):
    """A configuration file, environment variable or keyword that cannot be used."""


class PluginError(TokenmillError):
    """A plugin that was asked for by name and is missing, broken, disabled or declined."""


class BackendUnavailableError(PluginError):
    """No backend accepted: each one's reason is in the message."""


# --- models and where they come from ---------------------------------------------------------------------------------


class SourceError(TokenmillError):
    """A model reference that resolves to nothing, or whose download or conversion failed."""


class ModelError(TokenmillError):
    """A model that cannot be used. Base of what loading may raise."""


class ModelFileError(ModelError):
    """A file that is missing, empty, truncated or not what its name says."""


class PortError(ModelError):
    """A port, role or past/present pair that does not fit the graph."""


class UnsupportedOperatorError(ModelError):
    """An operator that no kernel and no host fallback implements; names operator, domain, version and node."""


class InsufficientMemoryError(ModelError):
    """Loading would need more memory than is free."""


class TokenizerError(ModelError):
    """A tokenizer file that is missing or unreadable, or text that it cannot encode."""


class TemplateError(ModelError):
    """A chat template that is missing, malformed, or refuses the conversation."""


# --- steps -----------------------------------------------------------------------------------------------------------


class StepError(TokenmillError, ValueError):
    """A step that was refused before anything changed."""


class CapacityError(StepError):
    """The step would pass the capacity of the cache; the message names the setting to raise."""


class RewindError(StepError):
    """A rewind to a length that cannot be reached."""


class RoutedInputError(StepError):
    """A routed input that is duplicate, missing or unknown, or whose value does not fit its port."""


class StaleViewError(StepError):
    """A value or lent cache view that was used after its lender moved on."""


class SessionClosedError(StepError):
    """A session that was used after `close()`."""


class ExecutionError(TokenmillError, RuntimeError):
    """A step that failed while it ran. The session is as it was before."""


class OutputError(ExecutionError):
    """An output that is missing, or whose shape or type is not what the role requires."""


class NonFiniteError(ExecutionError):
    """Logits that contain NaN or infinity."""


class KernelError(ExecutionError):
    """A kernel that reported through the error word; the flags are in the message."""


class OperatorError(ExecutionError):
    """An operator that was given inputs it cannot take; names operator, node and the inputs' shapes and types."""


class GenerationError(TokenmillError, ValueError):
    """Generation settings, prompt or conversation that cannot be used."""
