"""Temporary folders that do not outlive their processes, not even killed ones by much.

A folder is locked by the process that uses it. A process that is killed cannot remove its folder, but the kernel takes
back its lock, so the next one that makes such a folder removes it.

Concurrency: any number of processes. A folder is locked before it is used, and one that somebody else has taken for
left behind in that moment is made again.
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
    """Yield a temporary folder that is gone after the block; those that killed processes have left are removed first.

    Args:
        purpose: A word for its name.
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
    """Remove the folders of processes that are gone; return which."""
    gone = []
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # Ours alone: others may have made a folder or a link of such a name, and locks of others are not ours to try.
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
