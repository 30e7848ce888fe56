"""gRPC and fork: a child can only use gRPC if the parent had shut it down completely before the fork.

Closing the last connection starts that shutdown, but its threads end a few milliseconds later; a fork in between leaves
the child with locks that are never released (one child in twenty hangs on this). So before a fork idle connections are
closed, and the fork waits until gRPC's threads are gone; streams in reference cycles, such as that of a caught error,
are collected for this. If a connection is in use, the fork proceeds, and the child raises an error when it tries to
connect instead of hanging.

The parent's connections and streams must not be freed in the child either: that would wait for gRPC's threads, which do
not exist there. The garbage collector would free one in a reference cycle, such as that of a caught error. So in the
child the collector ignores everything that comes from the parent (`tests/link/test_grpc_fork.py`).
"""

from __future__ import annotations

import gc
import os
import sys
import time
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

_GRPC_THREADS = ("event_engine", "grpc_", "lifeguard", "timer_manager", "resolver-exec", "default-exec")
_LONGEST_WAIT_S = 5.0
_USUAL_WAIT_S = 0.2  # gRPC's threads take a few milliseconds to end; after this long something is keeping them
_TASKS = Path("/proc/self/task")


class Forkable(Protocol):
    """An object that holds a gRPC connection."""

    def before_fork(self) -> bool:
        """Close the connection if it is idle; return whether it is in use instead."""


class _State:
    def __init__(self) -> None:
        self.holders: weakref.WeakSet[Forkable] = weakref.WeakSet()
        self.used = False  # whether we have used gRPC since the last fork
        self.was_used = False  # whether we have ever used gRPC
        self.collects = True  # whether the garbage collector is on
        self.usable = True  # whether gRPC works in this process
        self.usable_in_child = True
        self.abandoned: list[object] = []
        self.foreign: frozenset[tuple[str, str]] = frozenset()  # threads of another library's gRPC, such as Ray's


_state = _State()


def watch(holder: Forkable) -> None:
    """Make sure that a holder's connection is closed before every fork."""
    look_around()
    _state.holders.add(holder)


def look_around() -> None:
    """Record which threads belong to the gRPC of another library: any that exist before Flight is loaded.

    Ray has its own copy of gRPC, in the same process and with the same thread names. What happens to that copy in a
    child does not concern us. Threads that such a library starts later cannot be distinguished from ours, and a fork
    waits for them in vain.
    """
    if "pyarrow._flight" not in sys.modules and _TASKS.is_dir():
        try:
            _state.foreign = frozenset(_named())
        except OSError:  # one ended in the meantime
            _state.foreign = frozenset()


def grpc_is_usable() -> bool:
    """Note that gRPC is about to be used; return False if this process was forked while gRPC was in use."""
    _state.used = _state.was_used = True
    return _state.usable


def abandon(connection: object) -> None:
    """Keep a connection of the parent forever: closing it in the child would hang."""
    _state.abandoned.append(connection)


def _before_fork() -> None:
    busy = [holder.before_fork() for holder in list(_state.holders)]  # a list, so that every holder is asked
    if _state.used:  # otherwise any gRPC threads belong to other code
        _state.usable_in_child = _state.usable and not any(busy) and _wait_for_grpc()
        _state.used = any(busy)
    _state.collects = gc.isenabled()
    gc.disable()  # until the child has set aside the parent's objects


def _wait_for_grpc() -> bool:
    start_s = time.monotonic()
    collected = False
    while grpc_threads():
        waited_s = time.monotonic() - start_s
        if waited_s > _LONGEST_WAIT_S:
            return False
        if waited_s > min(_USUAL_WAIT_S, _LONGEST_WAIT_S / 2) and not collected:
            gc.collect()
            collected = True
        time.sleep(0.001)
    return True


def grpc_threads() -> bool:
    """Return whether gRPC has, or might have, running threads.

    The kernel's thread list may be incomplete if a thread exits while it is read; the answer is then True.
    """
    if not _TASKS.is_dir():  # not on Linux
        return False
    try:
        before = _count()
        tasks = list(_TASKS.iterdir())
        found = _named(tasks)
        is_whole = before == len(tasks) == _count()
    except OSError:  # one ended before its name was read
        return True
    return not is_whole or not found <= _state.foreign


def _named(tasks: Iterable[Path] | None = None) -> set[tuple[str, str]]:
    """Return the threads with names like gRPC's: the id and start time of each, which together are unique."""
    found = set()
    for task in _TASKS.iterdir() if tasks is None else tasks:
        if (task / "comm").read_text().startswith(_GRPC_THREADS):
            found.add((task.name, (task / "stat").read_text().rpartition(")")[2].split()[19]))
    return found


def _count() -> int:
    """Return how many threads this process has."""
    return int(Path("/proc/self/status").read_text().partition("\nThreads:")[2].split(None, 1)[0])


def _in_parent() -> None:
    if _state.collects:
        gc.enable()


def _in_child() -> None:
    _state.usable = _state.usable_in_child
    if _state.was_used:
        gc.freeze()
    _in_parent()


os.register_at_fork(before=_before_fork, after_in_child=_in_child, after_in_parent=_in_parent)
