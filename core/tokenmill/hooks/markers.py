"""The markers that hook specifications and plugins use, and the version of the surface between them."""

from __future__ import annotations

import pluggy

#: Name of the pluggy project, and the entry-point group of plugins.
PROJECT = "tokenmill"
ENTRY_POINT_GROUP = "tokenmill.plugins"

#: (major, minor) of hooks and contracts together. A plugin declares what it was written for as `TOKENMILL_API`; it is
#: accepted when the major number is the same and its minor number is not newer. `docs/plugins.md` keeps the history.
API_VERSION: tuple[int, int] = (1, 0)

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
