"""Steps of few rows whose launches are replayed: consecutive calls that only launch then run without Python.

The other calls run as ever. A replay copies what they gave to where the launches read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

from tokenmill_cpu.frame import Frame, Recording

#: A call in a walk: its `run`, what takes its inputs from the slots, slots that it writes, slots that are free then, and
#: whether it only launches.
Line = tuple[Any, Callable[[list[Any]], Sequence[Any]], tuple[int, ...], tuple[int, ...], bool]

#: Bytes of a value up to which it is copied at each replay.
_LARGE = 1 << 20


@frozen(eq=False)
class Stretch:
    """Consecutive calls that only launch.

    :param reads: slots that they read and that others, or the graph's inputs, give.
    :param passes: slots of theirs that calls behind them read.
    :param writes: these, and the outputs of the graph among theirs.
    """

    lines: tuple[Line, ...]
    reads: tuple[int, ...]
    passes: tuple[int, ...]
    writes: tuple[int, ...]

    def record(self, walk: Callable[[Sequence[Line]], None], frame: Frame, slots: list[Any]) -> RecordedStretch | None:
        """Run it; gives what a replay takes, or None when its launches depend on more than the contents of arrays."""
        copies = self._copied_inputs(frame, slots)
        if copies is None or not self.lines:
            walk(self.lines)
            return None
        frame.record([copy for _, copy in copies])
        walk(self.lines)
        recording = frame.recorded()
        storages = [binding.storage for binding in frame.bound.values()]
        if recording is None or any(slots[slot].base is storage for slot in self.passes for storage in storages):
            return None  # a view of bound storage gets longer with each step
        return RecordedStretch(recording, tuple(copies), tuple((slot, slots[slot]) for slot in self.writes))

    def _copied_inputs(self, frame: Frame, slots: list[Any]) -> list[tuple[int, npt.NDArray[Any]]] | None:
        """Copies of what it reads, also put into the slots; None when that is too large. Bound storage stays in place."""
        copies = []
        for slot in self.reads:
            value = slots[slot]
            if value is not None and id(value) not in frame.bound:
                if not isinstance(value, np.ndarray) or value.nbytes > _LARGE or value.dtype == object:
                    return None
                copies.append((slot, np.array(value, order="C")))
        for slot, copy in copies:
            slots[slot] = copy
        return copies


@frozen(eq=False)
class RecordedStretch:
    """:param inputs: arrays by slot, that a replay fills.
    :param outputs: arrays by slot, that the launches fill.
    """

    recording: Recording
    inputs: tuple[tuple[int, npt.NDArray[Any]], ...]
    outputs: tuple[tuple[int, Any], ...]

    def replay(self, frame: Frame, slots: list[Any]) -> bool:
        """Whether the values fit; nothing was run when they do not."""
        for slot, array in self.inputs:
            value = slots[slot]
            if value.shape != array.shape or value.dtype != array.dtype:
                return False
            np.copyto(array, value)
        frame.finish()
        if not all(refresh() for refresh in self.recording.refreshes):
            return False
        frame.replay(self.recording)
        for slot, array in self.outputs:
            slots[slot] = array
        return True


@frozen(eq=False)
class Section:
    """A stretch and the calls before it."""

    before: tuple[Line, ...]
    stretch: Stretch
