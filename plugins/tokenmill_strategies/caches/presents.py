"""Whether a present output can replace its past."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenmill.contracts.backend import Value
from tokenmill.contracts.cache import CachedPort
from tokenmill.errors import OutputError


def present_array(port: CachedPort, outputs: Mapping[str, Value], length: int) -> npt.NDArray[Any]:
    """The present on the host, checked. It belongs to the backend and is valid until its next run.

    :param length: entries that it has to hold on its sequence axis; a recurrent state has none.
    :raises OutputError: missing, of another type, rank, length or extent.
    """
    value = outputs.get(port.pair.present)
    if value is None:
        raise OutputError(
            f"the backend gave no present '{port.pair.present}'",
            why=f"its outputs are {sorted(outputs)}",
            remedy="this is a defect of the backend; another one may run it (backend.name)",
        )
    array = value.numpy()
    if not isinstance(array, np.ndarray) or array.dtype != port.dtype:
        found = array.dtype.name if isinstance(array, np.ndarray) else type(array).__name__
        raise OutputError(f"present '{port.pair.present}' is {found}", why=f"its past takes {port.dtype.name}")
    wanted = port.extent(length)
    # An extent of 0 off the sequence axis is one that nothing states: the first present does.
    fits = array.ndim == len(wanted) and all(
        found == extent or (extent == 0 and axis != port.sequence_axis)
        for axis, (found, extent) in enumerate(zip(array.shape, wanted, strict=True))
    )
    if not fits:
        shown = ", ".join("?" if e == 0 and a != port.sequence_axis else str(e) for a, e in enumerate(wanted))
        raise OutputError(
            f"present '{port.pair.present}' has the shape {list(array.shape)}",
            why=f"[{shown}] is needed" + ("" if port.sequence_axis is None else f" with {length} tokens in the cache"),
            remedy="correct the pair in model.io, or export a present that holds past and new entries",
        )
    return array
