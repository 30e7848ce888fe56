"""Makes warnings point to the user's line, however deep in the loader they are raised."""

from __future__ import annotations

import sys

_ROOM = "sophon.loader."  # and all rooms inside it


def levels_to_user() -> int:
    """Return the `stacklevel` for a warning in the calling function to point to the first line outside `loader`."""
    frame, levels = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_ROOM):
        frame, levels = frame.f_back, levels + 1
    return levels
