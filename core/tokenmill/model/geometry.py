"""Shape and type of every past, before the first step: what a cache has to reserve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from tokenmill.errors import PortError
from tokenmill.model.attention import attention_extents
from tokenmill.model.decoder import Decoder, DecoderMetadata
from tokenmill.model.graph import NUMPY_TYPES, Port
from tokenmill.model.growth import batch_axis, is_static, sequence_axis
from tokenmill.model.naming import listing
from tokenmill.model.roles import PortPair

if TYPE_CHECKING:
    import onnx_ir


@frozen
class StateGeometry:
    """One past/present pair with its extents.

    :param shape: of the past for batch 1, with extent 0 on the sequence axis; the full extent of a recurrent state.
        None marks an extent that nothing states: it shows in the first present tensor.
    :param sequence_axis: axis that grows with the tokens; None for a recurrent state.
    """

    pair: PortPair
    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]
    sequence_axis: int | None

    @property
    def complete(self) -> bool:
        """Whether every extent is known before the first step."""
        return None not in self.shape

    def nbytes(self, length: int) -> int:
        """Bytes for `length` tokens. An unknown extent counts as 1."""
        count = 1
        for axis, extent in enumerate(self.shape):
            count *= length if axis == self.sequence_axis else 1 if extent is None else extent
        return count * self.dtype.itemsize


def resolve_cached_ports(decoder: Decoder) -> tuple[StateGeometry, ...]:
    """The geometry of every pair, attention's first.

    A symbolic extent is taken from the attention node that reads the past, else from the metadata, else from the
    present output, else it stays None.

    :raises PortError: a past without rank or type, a growing past of rank below 3, or one that its present cannot
        replace.
    """
    values = {value.name: value for value in decoder.graph.model.graph.inputs}
    return tuple(_geometry(decoder, pair, values.get(pair.past)) for pair in decoder.io.pairs)


def cache_bytes(geometry: tuple[StateGeometry, ...], length: int) -> int:
    """Bytes that past and present take for `length` tokens."""
    return sum(state.nbytes(length) for state in geometry)


def _geometry(decoder: Decoder, pair: PortPair, value: onnx_ir.Value | None) -> StateGeometry:
    past, present = decoder.graph.input(pair.past), decoder.graph.output(pair.present)
    if past is None or present is None or value is None:
        missing = pair.past if past is None else pair.present
        raise PortError(f"the graph lacks '{missing}'", why=listing(decoder.graph))
    shape = past.shape
    if shape is None:
        raise PortError(
            f"past '{past}' has no rank",
            why="its empty value cannot be made",
            remedy="export the model with the shapes of its inputs",
        )
    _check_replaceable(past, present)
    grows = None if pair.fixed else sequence_axis(past, present)
    if not pair.fixed and (len(shape) < 3 or grows is None):
        raise PortError(
            f"past '{past}' cannot grow",
            why="keys and values have rank 3 or more with one symbolic axis for the sequence",
            remedy="declare it in state_pairs when it is a recurrent state, or export a symbolic past length",
        )
    extents: list[int | None] = [extent if isinstance(extent, int) else None for extent in shape]
    if grows is not None:
        extents[grows] = 0
    batch = batch_axis(shape)
    if batch is not None and batch != grows:
        extents[batch] = _batch_extent(shape[batch], decoder.metadata)
    _fill(extents, attention_extents(value, len(shape)))
    _fill(extents, {} if pair.fixed else _stated_extents(decoder.metadata, len(shape)))
    if present.shape is not None:
        _fill(extents, {axis: extent for axis, extent in enumerate(present.shape) if isinstance(extent, int)})
    return StateGeometry(pair, tuple(extents), past.dtype, grows)


def _check_replaceable(past: Port, present: Port) -> None:
    for port in (past, present):
        if port.kind != "tensor" or port.element not in NUMPY_TYPES or port.element == "string":
            raise PortError(f"'{port}' cannot be kept in a cache", remedy="export it as a tensor of numbers")
    if past.element != present.element:
        raise PortError(
            f"past '{past}' and present '{present}' differ in type",
            remedy="export both with one type, or correct the pair",
        )
    if past.shape is None or present.shape is None:
        return
    if len(past.shape) != len(present.shape):
        raise PortError(f"past '{past}' and present '{present}' differ in rank", remedy="correct the pair in model.io")
    for before, after in zip(past.shape, present.shape, strict=True):
        if is_static(before) and is_static(after) and before != after:
            raise PortError(
                f"past '{past}' and present '{present}' differ in a fixed extent: {before} and {after}",
                remedy="correct the pair in model.io",
            )


def _batch_extent(symbol: Any, metadata: DecoderMetadata) -> int | None:
    """1, or the number of heads where an exporter folds them into the batch (`batch_size x num_heads`)."""
    folds_heads = isinstance(symbol, str) and "head" in symbol.lower()
    return metadata.num_heads if folds_heads else 1


def _stated_extents(metadata: DecoderMetadata, rank: int) -> dict[int, int | None]:
    """`[batch, heads, length, head_size]`, possibly behind an axis for key and value."""
    if rank < 4:
        return {}
    return {rank - 3: metadata.num_kv_heads, rank - 1: metadata.head_size}


def _fill(extents: list[int | None], found: dict[int, int] | dict[int, int | None]) -> None:
    for axis, extent in found.items():
        if extents[axis] is None and extent is not None and extent > 0:
            extents[axis] = extent
