"""Whether given values fit the inputs of a graph, said before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tokenmill.errors import PortError
from tokenmill.model.graph import NUMPY_TYPES, Port


def check_feeds(ports: Sequence[Port], feeds: Mapping[str, Any], preset: Collection[str] = ()) -> dict[str, Any]:
    """The feeds as host values: arrays (strings as `object`), lists of arrays for sequences, None for absent optionals.

    numpy values must have the port's type; other Python values are converted to it.

    :param preset: ports that have an initializer, or are bound, and need no feed.
    :raises PortError: a missing or unknown name, a wrong type, rank or static extent.
    """
    checked: dict[str, Any] = {}
    unusual, given, complete = [], 0, True
    for port in ports:
        name = port.name
        if name in feeds:
            value = checked[name] = feeds[name]
            given += 1
            if not _fits(port, value):
                unusual.append(port)
        elif port.kind == "optional":
            checked[name] = None
        elif name not in preset:
            complete = False
    if not complete or given < len(feeds):
        _refuse_names(ports, feeds, preset)
    for port in unusual:
        checked[port.name] = _checked(port, feeds[port.name])
    return checked


def _fits(port: Port, value: Any) -> bool:
    """Whether it is an array of just what the port declares: what every step of a session feeds."""
    if type(value) is not np.ndarray or port.kind != "tensor" or port.element == "string":
        return False
    if port.shape is None or value.dtype is not NUMPY_TYPES.get(port.element) or len(port.shape) != value.ndim:
        return False
    for declared, given in zip(port.shape, value.shape, strict=True):
        if declared.__class__ is int and declared != given:
            return False
    return True


def _refuse_names(ports: Sequence[Port], feeds: Mapping[str, Any], preset: Collection[str]) -> None:
    names = {port.name for port in ports}
    if unknown := sorted(set(feeds) - names):
        raise PortError(
            f"no input is called {', '.join(map(repr, unknown))}", why=f"the graph's inputs are {sorted(names)}"
        )
    missing = [p for p in ports if p.name not in feeds and p.name not in preset and p.kind != "optional"]
    raise PortError(
        f"{len(missing)} input(s) got no value: {'; '.join(map(str, missing))}",
        why=f"values were given for {sorted(feeds)}",
    )


def _checked(port: Port, value: Any) -> Any:
    if port.kind == "optional":
        if value is None:
            return None
        return [_array(port, item) for item in value] if isinstance(value, (list, tuple)) else _array(port, value)
    if port.kind == "sequence":
        if not isinstance(value, (list, tuple)):
            raise PortError(f"input '{port.name}' is a sequence", why=f"it was given a {type(value).__name__}")
        return [_array(port, item) for item in value]
    if port.kind == "sparse":
        return value
    array = _array(port, value)
    _check_shape(port, array)
    return array


def _array(port: Port, value: Any) -> np.ndarray[Any, Any]:
    wanted = NUMPY_TYPES.get(port.element)
    if not isinstance(value, (np.ndarray, np.generic)):
        value = _converted(port, value, wanted)
    array = np.asarray(value)
    if array.dtype.kind in "USTO":
        array = _strings(array)
    if wanted is not None and array.dtype != wanted:
        raise PortError(
            f"input '{port.name}' is {port.element}, and was given {array.dtype.name}{list(array.shape)}",
            remedy=f"convert it: value.astype({wanted.name!r})",
        )
    return array


def _converted(port: Port, value: Any, wanted: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    if value is None:
        raise PortError(f"input '{port.name}' was given None", why="only an optional input may be absent")
    try:
        return np.asarray(value, dtype=wanted)
    except (TypeError, ValueError, OverflowError) as error:
        raise PortError(
            f"input '{port.name}' cannot take this {type(value).__name__} as {port.element or 'a tensor'}",
            why=str(error),
        ) from error


def _strings(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    items = [item.decode() if isinstance(item, bytes) else item for item in array.reshape(-1).tolist()]
    held = np.empty(len(items), dtype=object)
    held[:] = items
    return held.reshape(array.shape)


def _check_shape(port: Port, array: np.ndarray[Any, Any]) -> None:
    if port.shape is None:
        return
    fits = len(port.shape) == array.ndim and all(
        not isinstance(declared, int) or declared == given
        for declared, given in zip(port.shape, array.shape, strict=True)
    )
    if not fits:
        raise PortError(
            f"input '{port.name}' was given the shape {list(array.shape)}", why=f"the graph declares {port}"
        )
