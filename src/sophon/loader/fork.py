"""gRPC and fork: a child can only use gRPC if the parent had shut it down completely before the fork.

Closing the last connection starts that shutdown, but its threads end a few milliseconds later; a fork in between leaves
the child with locks that nobody will ever release (one child in twenty hangs on this). So before a fork idle
connections are closed, and the fork waits until gRPC's threads are gone. Where a connection is in use the fork goes on,
and the child is told that it cannot connect, instead of hanging.
"""

from __future__ import annotations

import os
import time
import weakref
from pathlib import Path
from typing import Protocol

_GRPC_THREADS = ("event_engine", "grpc_", "lifeguard", "timer_manager", "resolver-exec", "default-exec")
_LONGEST_WAIT_S = 5.0


class Forkable(Protocol):
    """Something that holds a gRPC connection."""

    def before_fork(self) -> bool:
        """Close the connection if it is idle; return whether it is in use instead."""


class _State:
    def __init__(self) -> None:
        self.holders: weakref.WeakSet[Forkable] = weakref.WeakSet()
        self.used = False  # since the last fork, by us
        self.usable = True  # in this process
        self.usable_in_child = True
        self.abandoned: list[object] = []


_state = _State()


def watch(holder: Forkable) -> None:
    """Have a holder's connection closed before every fork."""
    _state.holders.add(holder)


def grpc_is_usable() -> bool:
    """Return False in a process that was forked while gRPC was in use; note that it is about to be used."""
    _state.used = True
    return _state.usable


def abandon(connection: object) -> None:
    """Keep a connection of the parent's for ever: to close it in the child would hang."""
    _state.abandoned.append(connection)


def _before_fork() -> None:
    busy = [holder.before_fork() for holder in list(_state.holders)]  # all of them, not only up to the first
    if _state.used:  # otherwise gRPC's threads, if there are any, are somebody else's
        _state.usable_in_child = _state.usable and not any(busy) and _wait_for_grpc()
        _state.used = any(busy)


def _wait_for_grpc() -> bool:
    end_s = time.monotonic() + _LONGEST_WAIT_S
    while _grpc_threads():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.001)
    return True


def _grpc_threads() -> bool:
    for task in Path("/proc/self/task").glob("*/comm"):
        try:
            if task.read_text().startswith(_GRPC_THREADS):
                return True
        except OSError:
            continue  # it ended while we looked
    return False


def _in_child() -> None:
    _state.usable = _state.usable_in_child


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
