"""What lies in a cache folder, whose it is, and how much of it may stay.

A cache folder has a folder for each kind of thing that is kept (`KINDS`), and in it one *entry* per data set or job: a
file, or for what the first ops give a folder. Beside an entry lies ``NAME.about``, a line that says what it is of. The
time of an entry is when it was last used.

The user's own cache folder is bounded: when a process first uses it, entries that were not used for the longest time
are removed until the others fit. What killed processes have left there is removed, too. Whatever cannot be removed
stays; a cache is no reason to fail.

Concurrency: any number of processes, on any number of hosts. An entry that is a folder is held by those who use it, and
is not removed meanwhile; a file may be removed at any time, since whoever has it open keeps it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sophon.artifact import remove_leftovers, replacing
from sophon.errors import ConfigError
from sophon.process.folders import user_folder
from sophon.units import parse_bytes

KINDS: Final = {
    "manifests": "lists of samples",
    "windows": "window indexes",
    "profiles": "measured costs",
    "prefixes": "results of the first ops",
}
VARIABLE: Final = "SOPHON_CACHE_BYTES"
DEFAULT_BYTES: Final = 20 * 10**9  # twice what is kept of one data set by default, `Cache.most_bytes`
_ABOUT: Final = ".about"
_HELD: Final = "in-use"
_COUNT: Final = "bytes"  # where an entry that is a folder counts its bytes, so that nobody has to look at all files
_LONGEST_ABOUT: Final = 2000
_tidied: set[Path] = set()


@dataclass(frozen=True)
class Entry:
    """Something that is kept.

    Args:
        kind: One of `KINDS`.
        path: The file or folder.
        about: What it belongs to; "" if not known.
        size_bytes: How large it is.
        used_s: When it was last used, as `time.time()` says.
    """

    kind: str
    path: Path
    about: str
    size_bytes: int
    used_s: float


def most_bytes() -> int:
    """Return how many bytes may stay in the user's cache folder: what SOPHON_CACHE_BYTES says, or 20 GB."""
    said = os.environ.get(VARIABLE)
    if not said:
        return DEFAULT_BYTES
    try:
        return parse_bytes(said)
    except ConfigError as error:
        raise ConfigError(f"{VARIABLE}: {error}") from error


def used(path: Path, about: str) -> None:
    """Say that an entry is used now, and what it is of."""
    with contextlib.suppress(OSError):
        os.utime(path)
        note = path.with_name(path.name + _ABOUT)
        text = about[:_LONGEST_ABOUT].encode("utf-8", "replace")
        if not note.is_file() or note.read_bytes() != text:
            with replacing(note) as file:
                file.write(text)


def hold(folder: Path) -> object:
    """Keep an entry that is a folder from being removed, for as long as what is returned lives."""
    return _Hold(folder)


class _Hold:
    def __init__(self, folder: Path) -> None:
        with contextlib.suppress(OSError):
            held = os.open(folder / _HELD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            weakref.finalize(self, os.close, held)
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)


def entries(base: Path) -> list[Entry]:
    """Return what lies in a cache folder, the latest used first."""
    found = [entry for kind in KINDS for entry in _entries(base, kind)]
    return sorted(found, key=lambda entry: -entry.used_s)


def _entries(base: Path, kind: str) -> Iterator[Entry]:
    try:
        paths = [path for path in (base / kind).iterdir() if not path.name.startswith(".")]
    except OSError:
        return
    for path in paths:
        if path.name.endswith(_ABOUT):
            continue
        with contextlib.suppress(OSError):  # somebody has just removed it
            status = path.stat()
            size_bytes = _counted(path) if path.is_dir() else status.st_size
            yield Entry(kind, path, _about(path), size_bytes, status.st_mtime)


def _about(path: Path) -> str:
    try:
        return path.with_name(path.name + _ABOUT).read_text(encoding="utf-8", errors="replace")[:_LONGEST_ABOUT]
    except OSError:
        return ""


def _counted(folder: Path) -> int:
    text = (folder / _COUNT).read_bytes()
    return int.from_bytes(text, "little") if len(text) == 8 else 0


def remove(entry: Entry) -> bool:
    """Remove an entry; return whether it is gone, and not in use or beyond our rights."""
    try:
        if entry.path.is_dir():
            with _alone(entry.path) as is_alone:
                if not is_alone:
                    return False
                shutil.rmtree(entry.path)
        else:
            entry.path.unlink()
    except OSError:
        return False
    with contextlib.suppress(OSError):
        entry.path.with_name(entry.path.name + _ABOUT).unlink()
    return True


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Say whether nobody uses a folder, and keep others out meanwhile."""
    held = os.open(folder / _HELD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(held)


def tidy(base: Path) -> None:
    """Remove what killed processes have left in a cache folder, and what does not fit; once in each process.

    Only the user's own folder is bounded: one that was named is the business of whoever named it.
    """
    if base in _tidied:
        return
    _tidied.add(base)
    sweep(base)
    if base == user_folder():
        shrink(base, most_bytes())


def sweep(base: Path) -> int:
    """Remove what killed processes have left in a cache folder; return how many files."""
    return sum(map(remove_leftovers, [*(base / kind for kind in KINDS), *_folders(base / "prefixes")]))


def _folders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir()]
    except OSError:
        return []


def shrink(base: Path, to_bytes: int) -> list[Entry]:
    """Remove entries, the longest unused first, until the others have at most so many bytes; return those removed."""
    found, gone = entries(base), []
    over_bytes = sum(entry.size_bytes for entry in found) - to_bytes
    while over_bytes > 0 and found:
        entry = found.pop()
        if remove(entry):
            over_bytes -= entry.size_bytes
            gone.append(entry)
    return gone


def unused(base: Path, days: float) -> list[Entry]:
    """Return the entries that were not used for so many days."""
    return [entry for entry in entries(base) if entry.used_s <= time.time() - days * 86_400]
