"""Rotary embedding: the angles of a GGUF file's metadata as tables of cosines and sines."""

from __future__ import annotations

import math

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray
from tokenmill.errors import SourceError

from tokenmill_strategies.sources.gguf_import.reading import GgufFile

#: The base of layers with a window, where the file does not say it (Gemma 3).
WINDOWED_BASE = 10_000.0


@frozen(kw_only=True)
class Yarn:
    """Interpolates slow rotations only (YaRN, arXiv 2309.00071, sections 3.2 and 3.4).

    :param context: that the model was first trained with, in tokens.
    :param fast: rotations within it above which a pair is left alone; `slow` those below which it is interpolated.
    """

    context: int
    fast: float
    slow: float


@frozen(kw_only=True)
class Rotary:
    """:param size: elements of a head that are rotated, from its beginning.
    :param scale: of positions; 0.5 is twice the context.
    :param magnitude: of cosines and sines.
    :param divisors: of each pair's frequency, `[size / 2]`, or nothing.
    """

    size: int
    base: float
    scale: float = 1.0
    magnitude: float = 1.0
    yarn: Yarn | None = None
    divisors: NDArray[np.float64] | None = field(default=None, eq=False)

    def frequencies(self) -> NDArray[np.float64]:
        """Radians per token, `[size / 2]`."""
        pairs = np.arange(self.size // 2)
        plain = self.base ** (-2.0 * pairs / self.size)
        if self.divisors is not None:
            plain = plain / self.divisors
        if self.yarn is None:
            return plain * self.scale
        first, last = (self._pair(rotations) for rotations in (self.yarn.fast, self.yarn.slow))
        low, high = max(0, math.floor(first)), min(self.size - 1, math.ceil(last))
        kept = 1.0 - np.clip((pairs - low) / max(0.001, high - low), 0.0, 1.0)
        return plain * self.scale * (1.0 - kept) + plain * kept

    def _pair(self, rotations: float) -> float:
        """The pair, as a fraction, that turns so often within the first context."""
        assert self.yarn is not None
        return self.size * math.log(self.yarn.context / (rotations * 2.0 * math.pi)) / (2.0 * math.log(self.base))

    def tables(self, context: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cosines and sines, `[context, size / 2] float32`, of angles computed in float64."""
        angles = np.arange(context, dtype=np.float64)[:, None] * self.frequencies()
        return (
            (np.cos(angles) * self.magnitude).astype(np.float32),
            (np.sin(angles) * self.magnitude).astype(np.float32),
        )


def global_rotary(file: GgufFile, head_size: int) -> Rotary:
    """:raises SourceError: a scaling that is not known, or sizes that cannot be."""
    size = file.count(file.own("rope.dimension_count"), head_size)
    if not 0 < size <= head_size or size % 2:
        raise SourceError(
            f"'{file.path}' rotates {size} of {head_size} elements of a head", why="it must be even and fit"
        )
    plain = Rotary(size=size, base=_base(file, "rope.freq_base", 10_000.0), divisors=_divisors(file, size))
    kind = file.text(file.own("rope.scaling.type"), "linear")
    factor = file.number(file.own("rope.scaling.factor"), 0.0) or file.number(file.own("rope.scale_linear"), 0.0)
    if kind == "none" or factor in (0.0, 1.0):
        return plain
    if kind == "linear":
        return evolve(plain, scale=1.0 / factor)
    if kind == "yarn":
        return _yarn(file, plain, factor)
    raise SourceError(f"'{file.path}' scales its rotary embedding by '{kind}'", why="known are none, linear and yarn")


def windowed_rotary(file: GgufFile, head_size: int) -> Rotary:
    """Of layers with a window: their own base, and never scaled."""
    size = file.count(file.own("rope.dimension_count_swa"), file.count(file.own("rope.dimension_count"), head_size))
    return Rotary(size=size, base=_base(file, "rope.freq_base_swa", WINDOWED_BASE))


def _base(file: GgufFile, key: str, default: float) -> float:
    base = file.number(file.own(key), default)
    if base <= 1:
        raise SourceError(f"'{file.path}' has '{file.own(key)}' = {base}", why="frequencies are powers of it below 1")
    return base


def _divisors(file: GgufFile, size: int) -> NDArray[np.float64] | None:
    if not file.has("rope_freqs.weight"):
        return None
    divisors = np.asarray(file.tensor("rope_freqs.weight", [size // 2]).data, np.float64)
    if not (np.isfinite(divisors) & (divisors > 0)).all():
        raise SourceError(
            f"'{file.path}' has 'rope_freqs.weight' that are not all above 0", why="they divide frequencies"
        )
    return divisors


def _yarn(file: GgufFile, plain: Rotary, factor: float) -> Rotary:
    yarn = Yarn(
        context=file.count(file.own("rope.scaling.original_context_length"), file.count(file.own("context_length"))),
        fast=file.number(file.own("rope.scaling.yarn_beta_fast"), 32.0),
        slow=file.number(file.own("rope.scaling.yarn_beta_slow"), 1.0),
    )
    if min(yarn.context, yarn.fast, yarn.slow) <= 0:
        raise SourceError(f"'{file.path}' has YaRN settings {yarn}", why="they must be above 0")
    magnitude = file.number(file.own("rope.scaling.attn_factor"), 1.0) * (1.0 + 0.1 * math.log(factor))
    return evolve(plain, scale=1.0 / factor, magnitude=magnitude, yarn=yarn)
