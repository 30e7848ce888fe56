"""Contents of a cache folder, the processes that use it, and how much of it is kept.

A cache folder has a subfolder for each kind of content (`KINDS`), with one *entry* per data set or job: a file, or a
folder for the results of the first ops. Next to an entry, ``NAME.about`` says in one line what it belongs to. The
modification time of an entry is the time it was last used.

The user's own cache folder is bounded: when a process first uses it, the least recently used entries are removed until
the rest fit. Leftovers of killed processes are removed too. Whatever cannot be removed stays; a cache is no reason to
fail.

Concurrency: any number of processes, on any number of hosts. An entry that is a folder is locked by the processes that
use it, and is not removed in the meantime; a file may be removed at any time, since a process that has it open can
still read it.
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
DEFAULT_BYTES: Final = 20 * 10**9  # twice the default for one data set, `Cache.most_bytes`
_ABOUT: Final = ".about"
_HELD: Final = "in-use"
_COUNT: Final = (
    "bytes"  # file in which an entry that is a folder records its size, so that it need not be added up file by file
)
_LONGEST_ABOUT: Final = 2000
_tidied: set[Path] = set()


@dataclass(frozen=True)
class Entry:
    """One entry of a cache folder.

    Args:
        kind: One of `KINDS`.
        path: The file or folder.
        about: What it belongs to; "" if unknown.
        size_bytes: How large it is.
        used_s: When it was last used, in the seconds of `time.time()`.
    """

    kind: str
    path: Path
    about: str
    size_bytes: int
    used_s: float


def most_bytes() -> int:
    """Return how many bytes the user's cache folder may hold: SOPHON_CACHE_BYTES, or 20 GB."""
    said = os.environ.get(VARIABLE)
    if not said:
        return DEFAULT_BYTES
    try:
        return parse_bytes(said)
    except ConfigError as error:
        raise ConfigError(f"{VARIABLE}: {error}") from error


def used(path: Path, about: str) -> None:
    """Record that an entry is in use now, and what it belongs to."""
    with contextlib.suppress(OSError):
        os.utime(path)
        note = path.with_name(path.name + _ABOUT)
        text = about[:_LONGEST_ABOUT].encode("utf-8", "replace")
        if not note.is_file() or note.read_bytes() != text:
            with replacing(note) as file:
                file.write(text)


def hold(folder: Path) -> object:
    """Protect an entry that is a folder from removal for as long as the returned object lives."""
    return _Hold(folder)


class _Hold:
    def __init__(self, folder: Path) -> None:
        with contextlib.suppress(OSError):
            held = os.open(folder / _HELD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            weakref.finalize(self, os.close, held)
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)


def entries(base: Path) -> list[Entry]:
    """Return the entries of a cache folder, most recently used first."""
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
        with contextlib.suppress(OSError):  # another process has just removed it
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
    """Remove an entry; return False if it is in use or we lack the permission."""
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
    """Yield whether no other process uses a folder, and lock others out until the block ends."""
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
    """Remove leftovers of killed processes and whatever exceeds the bound from a cache folder; once per process.

    Only the user's default folder is bounded; a folder that was named explicitly is left alone.
    """
    if base in _tidied:
        return
    _tidied.add(base)
    sweep(base)
    if base == user_folder():
        shrink(base, most_bytes())


def sweep(base: Path) -> int:
    """Remove the leftovers of killed processes from a cache folder; return how many files were removed."""
    return sum(map(remove_leftovers, [*(base / kind for kind in KINDS), *_folders(base / "prefixes")]))


def _folders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir()]
    except OSError:
        return []


def shrink(base: Path, to_bytes: int) -> list[Entry]:
    """Remove the least recently used entries until the rest fit into a number of bytes; return those removed."""
    found, gone = entries(base), []
    over_bytes = sum(entry.size_bytes for entry in found) - to_bytes
    while over_bytes > 0 and found:
        entry = found.pop()
        if remove(entry):
            over_bytes -= entry.size_bytes
            gone.append(entry)
    return gone


def unused(base: Path, days: float) -> list[Entry]:
    """Return the entries that have not been used for a number of days."""
    return [entry for entry in entries(base) if entry.used_s <= time.time() - days * 86_400]
