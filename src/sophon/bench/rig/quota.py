"""A share of the CPU for a whole process: cgroup quota, version 1 or 2.

The period is 10 ms instead of the kernel's 100: at a tenth of a core, a process would otherwise stop for 90 ms at a
time and leave the link idle, unlike on a real small CPU.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from pathlib import Path

from sophon.process.children import children_of

_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
_PERIOD_US, _LEAST_US = 10_000, 1_000  # the kernel takes no quota below 1 ms
_NAME = re.compile(r"sophon-(\d+)-\d+")
_numbers = itertools.count()


def mechanism() -> str | None:
    """The mechanism that can limit a process to a share of a core here, if any."""
    if not (hasattr(os, "geteuid") and os.geteuid() == 0):
        return None
    if (_V1 / "cpu.cfs_quota_us").exists():
        return "cgroup v1"
    controllers = _V2 / "cgroup.subtree_control"
    return "cgroup v2" if controllers.exists() and "cpu" in controllers.read_text().split() else None


class Quota:
    """A cgroup that limits one process to a number of cores, while a ``with`` block lasts.

    Args:
        cores: Number of cores; may be a fraction.
        pid: The process; its threads and descendants, including later ones, are limited with it.
    """

    def __init__(self, cores: float, pid: int) -> None:
        self._cores, self._pid = cores, pid
        root = _V1 if mechanism() == "cgroup v1" else _V2
        self._root, self._folder = root, root / f"sophon-{os.getpid()}-{next(_numbers)}"

    def __enter__(self) -> Quota:
        _remove_leftovers(self._root)
        period_us = max(_PERIOD_US, round(_LEAST_US / self._cores))
        quota_us = round(self._cores * period_us)
        self._folder.mkdir()
        try:
            if self._root == _V1:
                (self._folder / "cpu.cfs_period_us").write_text(str(period_us))
                (self._folder / "cpu.cfs_quota_us").write_text(str(quota_us))
            else:
                (self._folder / "cpu.max").write_text(f"{quota_us} {period_us}")
            for pid in self._tree(self._pid):
                with contextlib.suppress(ProcessLookupError):  # a child may have ended
                    (self._folder / "cgroup.procs").write_text(str(pid))
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Release the process and remove the cgroup."""
        for pid in self._tree(self._pid):
            with contextlib.suppress(OSError):  # the process may have ended
                (self._root / "cgroup.procs").write_text(str(pid))
        _remove(self._folder)

    def _tree(self, pid: int) -> list[int]:
        """Return a process and its descendants, parents first: what they start in the meantime is in the group."""
        with contextlib.suppress(FileNotFoundError):
            return [pid, *(below for child in children_of(pid) for below in self._tree(child))]
        return [pid]

    def __exit__(self, *_: object) -> None:
        self.close()


def _remove(folder: Path) -> None:
    end_s = time.monotonic() + 2.0
    while folder.exists():
        try:
            folder.rmdir()
        except OSError:  # a process that has just ended stays a moment
            if time.monotonic() > end_s:
                return
            time.sleep(0.01)


def _remove_leftovers(root: Path) -> None:
    for folder in root.glob("sophon-*"):
        found = _NAME.fullmatch(folder.name)
        if found is not None and not Path(f"/proc/{found[1]}").exists():
            with contextlib.suppress(OSError):
                folder.rmdir()
