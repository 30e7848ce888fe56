"""This process's threads: the CPU seconds of some, by the names that Linux reports, and a lower priority for one."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

NICE = 10  # for work that must not keep raw bytes from being sent
_TASKS = Path("/proc/self/task")


def be_nice() -> None:
    """Let other threads go first from now on; an ordinary user cannot take that back."""
    # Linux schedules each thread by its own priority; elsewhere this would slow down the whole process.
    if hasattr(os, "sched_setaffinity"):
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread)))


def cpu_s_of_threads(prefixes: Sequence[str]) -> float:
    """Return the CPU seconds so far of running threads whose names begin with one of the prefixes.

    Libraries name the threads that they start, which Python's clocks do not cover. Returns 0 if the system does not
    report them.

    Limits: the seconds of a thread that has ended are lost, so the sum may become smaller.
    """
    total_ns = 0
    try:
        tasks = list(_TASKS.iterdir())
    except OSError:  # not Linux
        return 0.0
    for task in tasks:
        try:
            if (task / "comm").read_text().startswith(tuple(prefixes)):
                total_ns += int((task / "schedstat").read_text().split()[0])
        except (OSError, ValueError, IndexError):  # it has just ended, or the kernel keeps no such statistics
            continue
    return total_ns / 1e9
