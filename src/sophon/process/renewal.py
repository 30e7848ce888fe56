"""Gives objects that hold a lock a new one in a forked child.

A lock that another thread holds at the moment of a fork would stay locked in the child forever: the thread that would
release it does not exist there.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """An object that can forget, in a child process, what the parent's threads were doing."""

    def renew(self) -> None:
        """Reset: the lock is free and nothing is in progress."""


def renew_after_fork(holder: Renewable) -> None:
    """Renew an object in every forked child, for as long as the object lives."""
    _HOLDERS.add(holder)


_HOLDERS: weakref.WeakSet[Renewable] = weakref.WeakSet()


def _renew_all() -> None:
    for holder in list(_HOLDERS):
        holder.renew()


os.register_at_fork(after_in_child=_renew_all)  # one hook for all, since a hook cannot be removed
