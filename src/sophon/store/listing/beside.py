"""Finds the listing of a folder of files: inside it as Hugging Face does, or next to it as Kaggle does."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sophon.errors import ConfigError
from sophon.store.listing.rows import SUFFIXES
from sophon.store.options import NONE

INSIDE: Final = ("metadata.csv", "metadata.jsonl", "metadata.parquet", "labels.csv", "labels.jsonl")
_BESIDE: Final = ("labels.csv", "{name}.csv", "{name}_labels.csv", "{name}_metadata.csv")


def find_listing(folder: Path, told: str | None) -> Path | None:
    """Return the listing of a folder, or None.

    Args:
        folder: The folder of the files.
        told: Name of the listing, in the folder or next to it; "none" for no listing; by default it is searched for.

    Raises:
        ConfigError: There are several listings, or the named one does not exist.
    """
    if told == NONE:
        return None
    if told is not None:
        return _told(folder, told)
    found = listings_of(folder)
    if len(found) > 1:
        raise ConfigError(
            f"{folder} has several listings: {', '.join(file.name for file in found)}; "
            f"write {folder}?listing={found[0].name}, or ?listing=none to use none of them"
        )
    return found[0] if found else None


def listings_of(folder: Path) -> list[Path]:
    """Return the listings in a folder; if there are none, those next to it."""
    for names, place in ((INSIDE, folder), (_BESIDE, folder.parent)):
        found = [file for name in names if (file := place / name.format(name=folder.name)).is_file()]
        if found:
            return found
    return []


def _told(folder: Path, told: str) -> Path:
    if "/" in told or Path(told).suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"listing: expected the name of a file in {folder} or next to it ({', '.join(SUFFIXES)}), got {told!r}"
        )
    for place in (folder, folder.parent):
        if (place / told).is_file():
            return place / told
    raise ConfigError(f"listing: there is no {told!r} in {folder} or next to it; check the spelling")
