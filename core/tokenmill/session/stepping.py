"""One forward pass, from a checked step to a committed cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy.typing as npt
from attrs import frozen

from tokenmill.contracts.backend import Context, Value
from tokenmill.contracts.step import Step
from tokenmill.errors import ExecutionError, KernelError, OutputError, TokenmillError
from tokenmill.model.roles import IoSpec
from tokenmill.session.cache import Cache
from tokenmill.session.hidden import HiddenRows
from tokenmill.session.inputs import StepInputs
from tokenmill.session.rows import Rows, all_rows, best_token, last_row, output_rows
from tokenmill.trace import Tracer

_READERS: dict[str, Callable[[str, npt.NDArray[Any], Step], Rows | int]] = {
    "rows": all_rows,
    "last": last_row,
    "token": best_token,
}


@frozen(eq=False)
class StepOutcome:
    """:param logits: what the step wanted: `[rows, vocab]`, `[vocab]` or a token id.
    :param vocabulary: extent of the logits.
    """

    logits: Rows | int
    vocabulary: int
    hidden: HiddenRows | None


class StepRunner:
    """Holds what a step needs, with every name resolved."""

    def __init__(self, io: IoSpec, inputs: StepInputs, cache: Cache, context: Context, tracer: Tracer) -> None:
        assert io.logits_output is not None
        self._logits, self._hidden = io.logits_output, io.hidden_output
        self._inputs, self._cache, self._context = inputs, cache, context
        self._span = tracer.span

    def run(self, step: Step) -> StepOutcome:
        """Run one step and commit it.

        :raises StepError: refused: no input or cache takes it.
        :raises ExecutionError: it failed while it ran; whatever the error, inputs and cache are as before.
        """
        try:
            with self._span("prepare"):
                self._inputs.prepare(step)
                self._cache.before(step)
                feeds = self._inputs.write(step)
                self._cache.write(step, feeds)
            with self._span("run", kind=step.kind, rows=step.rows, past=step.position_start):
                outputs = self._execute(feeds, step)
            with self._span("fetch", want=step.want):
                outcome = self._fetch(outputs, step)
            with self._span("kv_update"):
                self._cache.validate(step, outputs)
                self._cache.commit(step, outputs)
        except BaseException:
            self._inputs.abort(step)
            self._cache.abort(step)
            raise
        return outcome

    def _execute(self, feeds: Mapping[str, Any], step: Step) -> Mapping[str, Value]:
        try:
            return self._context.run(feeds, step)
        except TokenmillError:
            raise
        except Exception as error:
            raise ExecutionError(
                f"the backend failed in a {step.kind} step of {step.rows} tokens behind {step.position_start}",
                why=f"{type(error).__name__}: {error}",
                remedy="free memory, or feed fewer tokens at once"
                if isinstance(error, MemoryError)
                else "this is a defect of the backend; another one may run it (backend.name)",
            ) from error
        finally:
            self._flags = self._context.take_error()

    def _fetch(self, outputs: Mapping[str, Value], step: Step) -> StepOutcome:
        if self._flags:
            raise KernelError(
                f"a kernel reported the error flags {self._flags:#x} in a {step.kind} step of {step.rows} tokens",
                why="it met a value that it cannot take, such as an index out of range",
                remedy="check the step's inputs; backend.name = 'reference' names the operator",
            )
        rows = output_rows(self._logits, self._required(outputs, self._logits), step)
        logits = _READERS[step.want](self._logits, rows, step)
        hidden = None
        if self._hidden is not None:
            states = output_rows(self._hidden, self._required(outputs, self._hidden), step)
            hidden = HiddenRows.of(states, step.mask_length)
        return StepOutcome(logits, rows.shape[-1], hidden)

    def _required(self, outputs: Mapping[str, Value], name: str) -> Value:
        value = outputs.get(name)
        if value is None:
            raise OutputError(
                f"the backend gave no '{name}'",
                why=f"its {len(outputs)} outputs are {sorted(outputs)}",
                remedy="this is a defect of the backend; another one may run it (backend.name)",
            )
        return value
