"""Resolves the paths in a listing to files, which must lie inside the data set."""

from __future__ import annotations

import os
import posixpath
import re
import stat as stat_flags
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from sophon.errors import StoreError
from sophon.store.fields import SUFFIXES
from sophon.store.listing.rows import Listing
from sophon.store.pages.identity import Int64Array
from sophon.store.store import Progress, describe

_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_STEP: Final = 4096  # files between two reports


@dataclass
class Files:
    """The files that a listing's rows name.

    Args:
        paths: Paths relative to the root, one per selected row.
        sizes: Sizes of the files, in bytes.
        rows: The row of the listing for each file.
        folders: All folders that hold listed files, relative to the root, with their mtimes and ctimes.
        elsewhere: How many rows name files outside the folder, or files that do not exist; counted only if the listing
            was found next to a folder, since it may cover more than that folder.
    """

    paths: list[str]
    sizes: Int64Array
    rows: Int64Array
    folders: dict[str, tuple[int, int]] = field(default_factory=dict)
    elsewhere: int = 0


def inside(path: str, listing: Listing, index: int) -> str:
    """Return a row's path in its shortest form, relative to the listing.

    Raises:
        StoreError: The path is empty, absolute, an address, or leads out of the listing's folder.
    """
    problem = ""
    if not path or not path.strip():
        problem = "the path is empty; enter a file name or remove the row"
    elif "\0" in path:
        problem = "the path contains a zero byte; correct it"
    elif _SCHEME.match(path):
        problem = f"{path!r:.80} is an address and not a path; download the file and enter its path"
    elif path.startswith(("/", "~")):
        problem = (
            f"{path!r:.80} is not relative to the listing; put the listing above its files, and write paths from there"
        )
    else:
        short = posixpath.normpath(path)
        if short != ".." and not short.startswith("../"):
            if short != ".":
                return short
            problem = f"{path!r} is a folder; name a file"
        else:
            problem = f"{path!r:.80} leads out of the folder of the listing; put the listing above its files"
    raise StoreError(f"{listing.row(index)}: {problem}")


def find_files(
    listing: Listing, paths: Sequence[str | None], rows: Int64Array, root: Path, on_progress: Progress | None
) -> Files:
    """Return the files named by a listing's rows, each of which must exist.

    Args:
        listing: The listing that the paths come from.
        paths: Paths of all rows.
        rows: Rows that are wanted.
        root: The folder that contains all files; paths are relative to it.
        on_progress: Called from time to time.

    Raises:
        StoreError: A path leads elsewhere, a file does not exist or is named twice; the message names the row.
    """
    wanted = [inside(paths[row] or "", listing, row) for row in rows.tolist()]
    ending = _ending(wanted[0], root) if wanted else ""
    seen: dict[str, int] = {}
    sizes = np.empty(len(wanted), np.int64)
    found = Files([], sizes, rows)
    for at, (row, name) in enumerate(zip(rows.tolist(), wanted, strict=True)):
        path = name + ending
        if path in seen:
            raise StoreError(
                f"{listing.row(row)} names {path!r} again, after {listing.row(seen[path])}; remove one of them"
            )
        seen[path] = row
        sizes[at] = _size(root, path, listing, row)
        found.paths.append(path)
        if on_progress is not None and (at + 1) % _STEP == 0:
            on_progress(at + 1, len(wanted))
    found.folders = _folders(root, found.paths)
    return found


def find_files_of(
    listing: Listing, paths: Sequence[str | None], rows: Int64Array, root: Path, existing: dict[str, int]
) -> Files:
    """Return the files of a folder that are named in a listing next to it; other rows are only counted.

    Args:
        listing: The listing; its paths are relative to it or to the folder, or names without their ending.
        paths: Paths of all rows.
        rows: Rows that are wanted.
        root: The folder.
        existing: The files in the folder by path, with their sizes.

    Raises:
        StoreError: A path leads out of the folder of the listing, or a file is named twice; the message names the row.
    """
    prefix = posixpath.relpath(str(root), str(listing.file.parent)) + "/"
    by_stem: dict[str, str | None] = {}
    for name in existing:
        stem = posixpath.splitext(name)[0]
        by_stem[stem] = None if stem in by_stem else name  # two files with the same stem: ambiguous, so neither is used
    seen: dict[str, int] = {}
    kept: list[int] = []
    for row in rows.tolist():
        name = inside(paths[row] or "", listing, row)
        forms = (name.removeprefix(prefix), name) if prefix != "./" else (name,)
        path = next((form for form in forms if form in existing), None) or next(
            (by_stem[form] for form in forms if by_stem.get(form)), None
        )
        if path is None:
            continue
        if path in seen:
            raise StoreError(
                f"{listing.row(row)} names {path!r} again, after {listing.row(seen[path])}; remove one of them, or "
                "leave the listing out with ?listing=none"
            )
        seen[path] = row
        kept.append(row)
    sizes = np.array([existing[path] for path in seen], np.int64)
    return Files(list(seen), sizes, np.array(kept, np.int64), _folders(root, list(seen)), len(rows) - len(kept))


def _ending(name: str, root: Path) -> str:
    """Return the ending that a listing's names lack, such as ".jpg" in Kaggle's; "" if they are complete."""
    start = f"{root}/{name}"
    if os.path.lexists(start):  # Path.exists raises where a name is too long
        return ""
    return next((suffix for endings in SUFFIXES.values() for suffix in endings if os.path.lexists(start + suffix)), "")


def _size(root: Path, path: str, listing: Listing, row: int) -> int:
    try:
        stat = os.stat(f"{root}/{path}")  # noqa: PTH116 - a Path takes longer than the call
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(
            f"{listing.row(row)}: there is no file {path!r:.200} in {root}; put it there, remove the row, or select "
            "others with ?where="
        ) from error
    except (OSError, ValueError) as error:
        problem = describe(error)
        raise StoreError(
            f"{listing.row(row)}: {path!r:.80} cannot be examined: {problem}. Check its permissions."
        ) from error
    if not stat_flags.S_ISREG(stat.st_mode):
        raise StoreError(f"{listing.row(row)}: {path!r} in {root} is not a file; name a file")
    return stat.st_size


def _folders(root: Path, paths: list[str]) -> dict[str, tuple[int, int]]:
    stats = {name: (root / name).stat() for name in sorted({posixpath.dirname(path) for path in paths})}
    return {name: (stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats.items()}
