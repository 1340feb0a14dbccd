"""The operators on the host that one plugin offers to every backend, loaded when first needed."""

from __future__ import annotations

import threading

from tokenmill.contracts.answers import Answer, Declined
from tokenmill.contracts.descriptors import BackendDescriptor
from tokenmill.contracts.fallback import HostFallback, HostOperator
from tokenmill.errors import PluginError, UnsupportedOperatorError
from tokenmill.hooks.attributes import PLUGIN_FAILURES, load_attribute, reason_of
from tokenmill.hooks.registry import Registry
from tokenmill.model.program import Instruction


class LazyHostFallback:
    """A `HostFallback` that is imported at the first question.

    :param registry: its backend of highest priority with a `host_fallback` provides it; without one, all is declined.
    """

    def __init__(self, registry: Registry) -> None:
        offers = (item for item in registry.active(BackendDescriptor) if item.host_fallback)
        self._descriptor = next(offers, None)
        self._fallback: HostFallback | None = None
        self._turn = threading.Lock()

    @property
    def provider(self) -> str | None:
        """Name of the backend that provides it."""
        return self._descriptor.name if self._descriptor else None

    def supports(self, domain: str, operator: str, version: int) -> Answer:
        if self._descriptor is None:
            return Declined("no active plugin offers host operators", "enable the plugin 'reference'")
        try:
            return self._loaded().supports(domain, operator, version)
        except PluginError as error:
            return Declined(str(error))

    def bind(self, instruction: Instruction) -> HostOperator:
        """:raises UnsupportedOperatorError: when `supports` declines."""
        if self._descriptor is None:
            answer = self.supports(instruction.domain, instruction.operator, instruction.version)
            raise UnsupportedOperatorError(f"no host operator for {instruction.title}", why=str(answer))
        return self._loaded().bind(instruction)

    def _loaded(self) -> HostFallback:
        with self._turn:
            if self._fallback is None:
                assert self._descriptor is not None and self._descriptor.host_fallback is not None
                factory = load_attribute(self._descriptor.host_fallback)
                try:
                    self._fallback = factory()
                except PLUGIN_FAILURES as error:
                    what = f"the host operators of backend '{self._descriptor.name}' cannot be made"
                    raise PluginError(what, why=reason_of(error)) from error
            return self._fallback
