"""Imported when the backend is chosen, and not before."""

from __future__ import annotations

from tokenmill.contracts.answers import Declined


class GoodBackend:
    name = "good"

    def __init__(self, options, fallback):
        self.options, self.fallback = options, fallback

    def probe(self):
        return Declined(
            f"level {self.options.level}, threads {self.options.threads}, host operators of {self.fallback.provider}"
        )

    def compile(self, graph, io=None, progress=None):
        raise NotImplementedError
