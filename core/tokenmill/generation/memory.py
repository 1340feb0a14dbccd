"""The process's highest resident memory."""

from __future__ import annotations

import sys


def peak_memory() -> int | None:
    """Bytes; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        import psutil

        return getattr(psutil.Process().memory_info(), "peak_wset", None)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024
