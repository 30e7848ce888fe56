"""The processes that a process has started, as Linux tells."""

from __future__ import annotations

import contextlib
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """Return the ids of a process's children, whichever of its threads started them."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread may end while one looks
            found += map(int, (task / "children").read_text().split())
    return found
