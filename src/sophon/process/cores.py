"""How many cores this process may use, and the CPU quota that the kernel enforces."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def cores_here() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def quota_here(cgroup: Path = Path("/proc/self/cgroup"), root: Path = _CGROUPS) -> float | None:
    """Return how many cores, on average, a cgroup quota allows this process; None if there is no quota.

    Args:
        cgroup: File that names the cgroups of the process.
        root: Where the cgroups are mounted.
    """
    quotas = []
    try:
        lines = cgroup.read_text().splitlines()
    except OSError:  # not Linux
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "cpu" if controllers else root
        folder = top / path.lstrip("/")
        while True:  # a group is also bound by the quotas of its ancestors
            quotas.append(_quota_of(folder))
            if folder == top or top not in folder.parents:
                break
            folder = folder.parent
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_of(folder: Path) -> float | None:
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            return float(quota) / float(period) if quota != "max" and float(quota) > 0 else None
        except (OSError, ValueError):  # the other cgroup version, or no cgroups
            continue
    return None
