"""The user's own folders, where the platform keeps them."""

from __future__ import annotations

from pathlib import Path

from platformdirs import user_cache_path


def user_folder() -> Path | None:
    """Return this project's folder in the user's cache, which may not exist yet; None if the user has no home."""
    try:
        return user_cache_path("sophon")
    except RuntimeError:
        return None  # no variable names a folder, and the user has no home
