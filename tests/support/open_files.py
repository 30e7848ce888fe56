"""How many files this process has open."""

from __future__ import annotations

from pathlib import Path


def open_files() -> list[int]:
    """Return the descriptors that are in use, the one of this look among them."""
    return [int(link.name) for link in Path("/proc/self/fd").iterdir()]
