"""Temporary folders that are removed with their process, or soon after it was killed.

A folder is locked by the process that uses it. A process that is killed cannot remove its folder, but the kernel
releases its lock, so the next process that creates such a folder removes it.

Concurrency: any number of processes. A folder is locked before it is used; if another process took it for a leftover
just before that, it is created again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "sophon-"
_LOCK = ".sophon-lock"


@contextlib.contextmanager
def scratch_folder(purpose: str = "") -> Iterator[Path]:
    """Yield a temporary folder that is removed after the block; leftovers of killed processes are removed first.

    Args:
        purpose: A word that becomes part of its name.
    """
    remove_abandoned()
    prefix = f"{_PREFIX}{purpose}-" if purpose else _PREFIX
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
        if os.fstat(lock).st_nlink:
            break
        os.close(lock)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_abandoned() -> list[Path]:
    """Remove the folders of processes that are gone; return their paths."""
    gone = []
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # Only our own: other users may have created a folder or link of that name, and we must not try their locks.
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                gone.append(folder)
            finally:
                os.close(lock)
    return gone
