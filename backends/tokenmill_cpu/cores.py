"""How many cores this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cores() -> int:
    """Cores by affinity, bounded by the quota of the control group; at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return max(1, affinity if quota is None else min(affinity, math.ceil(quota)))


def _quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Processors' worth of time that a Linux control group grants; None is unlimited or unknown."""
    try:
        limit, period = (root / "cpu.max").read_text().split()  # version 2
    except (OSError, ValueError):
        try:
            limit = (root / "cpu" / "cpu.cfs_quota_us").read_text()  # version 1
            period = (root / "cpu" / "cpu.cfs_period_us").read_text()
        except OSError:
            return None
    try:
        granted = float(limit) / float(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return None
    return granted if granted > 0 else None
