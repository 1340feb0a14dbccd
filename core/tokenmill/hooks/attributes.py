"""Import what a descriptor names, guarded: whatever goes wrong in a plugin's module becomes a PluginError."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path
from typing import Any

from tokenmill.errors import PluginError

_LOADER = str(Path(__file__).parent)

#: What a plugin's code may raise without ending the program. Ctrl-C passes.
PLUGIN_FAILURES = (Exception, SystemExit)


def load_attribute(path: str) -> Any:
    """The object at `module:attribute`.

    :raises PluginError: when the module cannot be imported or lacks the attribute.
    """
    module_name, _, attribute = path.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
        for name in attribute.split("."):
            value = getattr(value, name)
    except PLUGIN_FAILURES as error:
        raise PluginError(f"'{path}' cannot be imported", why=reason_of(error)) from error
    return value


def reason_of(error: BaseException) -> str:
    """`Type: message` on one line; tokenmill's own errors speak for themselves."""
    text = " ".join(str(error).split())
    if isinstance(error, PluginError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def short_traceback(error: BaseException, frames: int = 3) -> str:
    """The last frames of the plugin's own code: those of the import system and of tokenmill's loader say nothing."""
    summary = traceback.TracebackException.from_exception(error)
    own = [
        frame
        for frame in summary.stack
        if not frame.filename.startswith("<frozen")
        and "importlib" not in frame.filename
        and not frame.filename.startswith(_LOADER)
    ]
    lines = traceback.format_list(own[-frames:])
    return "".join([*lines, *summary.format_exception_only()]).rstrip()
