"""What loading will need, compared with what is free, before it is taken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from tokenmill.errors import InsufficientMemoryError
from tokenmill.model.graph import OnnxGraph
from tokenmill.model.weights import tensors


@frozen
class MemoryNeed:
    """Bytes that a session of a graph will need.

    :param weights: the packed copy of every constant. The source pages are given back while packing goes on.
    :param packing: the largest constant once more: it is held as read and as packed at the same time.
    :param cache: past and present at their capacity.
    """

    weights: int
    packing: int
    cache: int

    @property
    def total(self) -> int:
        return self.weights + self.packing + self.cache


def estimate_memory(graph: OnnxGraph, cache_bytes: int = 0) -> MemoryNeed:
    """The need, from types and shapes alone: no weight is read."""
    sizes = [tensor.nbytes for tensor in tensors(graph.model) if tensor.dtype.name != "STRING"]
    return MemoryNeed(weights=sum(sizes), packing=max(sizes, default=0), cache=cache_bytes)


def check_memory(graph: OnnxGraph, cache_bytes: int, *, free_bytes: int | None = None) -> MemoryNeed:
    """Refuse to load what does not fit.

    :param free_bytes: what is free; None asks the machine and the control group.
    :raises InsufficientMemoryError: with the numbers and the setting to lower.
    """
    need = estimate_memory(graph, cache_bytes)
    free = free_memory() if free_bytes is None else free_bytes
    if need.total <= free:
        return need
    fits_without_cache = need.weights + need.packing <= free
    raise InsufficientMemoryError(
        f"loading needs {_mib(need.total)}, {_mib(free)} are free",
        why=f"weights {_mib(need.weights)}, packing {_mib(need.packing)}, cache {_mib(need.cache)}",
        remedy=(
            "lower cache.max_len, or free memory"
            if fits_without_cache
            else "use a model with smaller or quantized weights, or free memory; lowering cache.max_len is not enough"
        ),
    )


def _mib(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB"


def free_memory() -> int:
    """Bytes that this process can still take: the machine's, or less where its control group allows less."""
    import psutil

    return min(
        [int(psutil.virtual_memory().available), *_group_allowances(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))]
    )


def _group_allowances(membership: Path, mount: Path) -> Iterator[int]:
    """What each control group from the process's own up to the root leaves; nothing where there are none.

    Files of version 2 and version 1 as in the kernel's documentation, admin-guide/cgroup-v2 and cgroup-v1/memory.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            limit, usage, root = "memory.max", "memory.current", mount
        elif "memory" in controllers.split(","):
            limit, usage, root = "memory.limit_in_bytes", "memory.usage_in_bytes", mount / "memory"
        else:
            continue
        own = root / path.lstrip("/")
        for group in (own, *own.parents):
            if not group.is_relative_to(root):
                break
            allowance = _allowance(group, limit, usage)
            if allowance is not None:
                yield allowance


def _allowance(group: Path, limit: str, usage: str) -> int | None:
    try:
        allowed, used = (group / limit).read_text().strip(), int((group / usage).read_text())
        statistics = (group / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):
        return None
    if not allowed.isdigit():  # "max"
        return None
    # Cached file pages count as used but are given back on demand.
    cached = sum(
        int(line.split()[1]) for line in statistics if line.split()[:1] in (["inactive_file"], ["active_file"])
    )
    return max(0, int(allowed) - max(0, used - cached))
