"""Child processes, as Linux lists them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_GONE = (FileNotFoundError, ProcessLookupError)


def children_of(pid: int) -> list[int]:
    """Return the ids of a process's children, whichever of its threads started them."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(*_GONE):  # a thread may end while we look
            found += map(int, (task / "children").read_text().split())
    return found


def tree_cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process and everything below it have used so far.

    Sessions and process groups do not matter. Once a parent has waited for a child that ended, the child's time counts
    as the parent's.

    Limits: children that outlive their parent are no longer found.
    """
    # Children first: one that ends in the meantime is counted with its parent. At worst it counts twice until the next
    # call, but it is never left out.
    below_s = 0.0
    for child in children_of(pid):
        with contextlib.suppress(*_GONE):
            below_s += tree_cpu_s(child)
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    # Times of the process and of the children it has waited for: utime, stime, cutime, cstime (proc_pid_stat(5)).
    own_s, ended_s = (sum(map(int, fields[at : at + 2])) / os.sysconf("SC_CLK_TCK") for at in (11, 13))
    with contextlib.suppress(OSError):  # the process has just ended
        own_s = time.clock_gettime(_cpu_clock(pid))
    return below_s + own_s + ended_s


def kill_tree(pid: int) -> None:
    """Kill a process and everything below it with SIGKILL, parents first, so that none of them starts another one."""
    with contextlib.suppress(*_GONE):
        os.kill(pid, signal.SIGSTOP)  # it starts nothing while we look
        below = children_of(pid)
        os.kill(pid, signal.SIGKILL)
        for child in below:
            kill_tree(child)


def _cpu_clock(pid: int) -> int:
    """Return the id of a process's CPU clock, which counts nanoseconds where `/proc` counts hundredths of a second.

    It is built as in `clock_getcpuclockid(3)`: the inverted bits of the pid, then 2 for the scheduler's clock.
    """
    return (~pid << 3) | 2
