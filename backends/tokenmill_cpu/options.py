"""Settings of the CPU backend, at `[backend.options.cpu]`."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import and_, ge, in_, instance_of, le, optional

#: From the fastest to the one that runs everywhere. Each needs what the next one needs, and more.
LEVELS = ("avx512_vnni", "portable")


@frozen(kw_only=True)
class CpuOptions:
    """
    :param threads: parts that a large launch is split into; None is the number of cores that this process may use.
    :param instructions: `auto` is the highest level that this machine has; a lower one can be forced.
    """

    threads: int | None = field(default=None, validator=optional(and_(instance_of(int), ge(1), le(1024))))
    instructions: str = field(default="auto", validator=in_(("auto", *LEVELS)))
