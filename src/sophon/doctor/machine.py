"""Checks that the machine gives a process what it needs: cores, open files, the cache folder, shared memory."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sophon.doctor.finding import ADVICE, FAULT, FINE, Finding
from sophon.process.cores import cores_here, quota_here
from sophon.process.folders import make_private, not_private, user_folder
from sophon.units import format_bytes

_ABOUT: Final = "machine"
_LEAST_FILES: Final = 256  # a loader with a node, worker processes and kept batches uses about 160
_ENOUGH_FILES: Final = 1024  # the usual default
_LEAST_FREE: Final = 1 << 28  # bytes: a manifest of ten million samples, and profiles
_LEAST_SHM: Final = 1 << 28  # bytes: a few batches of 256 pictures
_SHM: Final = Path("/dev/shm")
_TRIAL: Final = bytes(1 << 20)


def examine_machine() -> Iterator[Finding]:
    """Check what the operating system allows this process."""
    yield _cores()
    yield _files()
    yield from _cache_folder()
    yield from _temporary()
    yield from _shared_memory()


def _cores() -> Finding:
    cores, quota = cores_here(), quota_here()
    if quota is not None and quota < cores:
        text = f"{cores} cores, of which a cgroup quota allows {quota:g}"
        remedy = "Give the container more CPU, or expect only that many cores."
        return Finding(_ABOUT, "cores", ADVICE if quota < 1 else FINE, text, remedy if quota < 1 else "")
    return Finding(_ABOUT, "cores", FINE, f"{cores} cores")


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"a process may have {soft:,} open files"
    if soft >= _ENOUGH_FILES:
        return Finding(_ABOUT, "files", FINE, text)
    raised = "ulimit -n 4096" if hard >= 4096 else "a higher hard limit (limits.conf, LimitNOFILE=, --ulimit nofile)"
    remedy = f"Connections, worker processes and files use them. Raise the limit with {raised}."
    return Finding(_ABOUT, "files", FAULT if soft < _LEAST_FILES else ADVICE, f"{text}, which is low", remedy)


def _cache_folder() -> Iterator[Finding]:
    folder = user_folder()
    if folder is None:
        remedy = "Set XDG_CACHE_HOME to a folder that you own; otherwise data sets are listed again in every run."
        yield Finding(_ABOUT, "cache", ADVICE, "there is no cache folder: this user has no home folder", remedy)
        return
    elsewhere = (
        "Set XDG_CACHE_HOME to a folder that you can write to; otherwise data sets are listed again in every run."
    )
    try:
        make_private(folder)
        problem = not_private(folder)
        if problem is not None:
            remedy = "Until then it is not used, and data sets are listed again in every run."
            yield Finding(_ABOUT, "cache", ADVICE, f"the cache folder is not safe: {problem}", remedy)
            return
        _try_writing(folder)
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        text = f"the cache folder {folder} cannot be written to: {error.strerror or error}"
        yield Finding(_ABOUT, "cache", ADVICE, text, elsewhere)
        return
    if free_bytes < _LEAST_FREE:
        text = f"the disk of the cache folder {folder} is nearly full: {format_bytes(free_bytes)} are free"
        yield Finding(_ABOUT, "cache", ADVICE, text, f"Free some space (`sophon cache list`). {elsewhere}")
    else:
        yield Finding(_ABOUT, "cache", FINE, f"cache folder {folder}, {format_bytes(free_bytes)} free")


def _temporary() -> Iterator[Finding]:
    try:
        _try_writing(Path(tempfile.gettempdir()))
    except OSError as error:
        text = f"no temporary file can be written: {error.strerror or error}"
        yield Finding(_ABOUT, "temporary", FAULT, text, "Free some space there, or set TMPDIR to another folder.")


def _try_writing(folder: Path) -> None:
    """Write a file and remove it.

    Raises:
        OSError: The file cannot be written.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(_TRIAL)
        file.flush()
        os.fsync(file.fileno())


def _shared_memory() -> Iterator[Finding]:
    """Check /dev/shm: sophon.DataLoader does not need it, but a RemoteDataset under torch's own DataLoader does."""
    try:
        free_bytes = shutil.disk_usage(_SHM).free
    except OSError:
        return
    if free_bytes < _LEAST_SHM:
        text = f"/dev/shm has {format_bytes(free_bytes)} free: worker processes of torch's own DataLoader may crash"
        remedy = "Use sophon.DataLoader, which does not need it, or `docker run --shm-size 2g`."
        yield Finding(_ABOUT, "shm", ADVICE, text, remedy)
