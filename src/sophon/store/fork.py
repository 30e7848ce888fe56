"""What holds a lock, and must get a new one in a forked child.

A lock that another thread holds at the moment of a fork would stay locked in the child for ever.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """What can forget, in a child process, what threads of the parent were doing."""

    def renew(self) -> None:
        """Start anew: nobody holds the lock, nothing is under way."""


def renew_after_fork(holder: Renewable) -> None:
    """Have a holder renewed in every forked child for as long as it lives."""
    _HOLDERS.add(holder)


_HOLDERS: weakref.WeakSet[Renewable] = weakref.WeakSet()


def _renew_all() -> None:
    for holder in list(_HOLDERS):
        holder.renew()


os.register_at_fork(after_in_child=_renew_all)  # once for all, since a hook cannot be taken back
