"""How a long job goes on, as a bar on stderr where that is a terminal, and nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from tokenmill.contracts.sourcing import NoProgress
from tokenmill.contracts.sourcing import Progress as ProgressContract


class BarProgress:
    """One bar at a time; it goes away when the job is done."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task: TaskID | None = None

    def start(self, label: str, total: float | None = None) -> None:
        self.finish()
        self._task = self._bars.add_task(label, total=total)

    def advance(self, amount: float = 1.0) -> None:
        if self._task is not None:
            self._bars.advance(self._task, amount)

    def finish(self) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None


@contextmanager
def progress_bars() -> Iterator[ProgressContract]:
    """Bars within the block; the terminal is as before after it, whatever happened."""
    if not sys.stderr.isatty():
        yield NoProgress()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield BarProgress(bars)
