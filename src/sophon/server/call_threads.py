"""How gRPC's threads for calls work here, and how many there may be, whoever calls and however often.

gRPC starts a thread for each call before anybody is asked who calls. A flood of calls that are reset at once made
17,000 threads in a second. All of them waited for the GIL, and so did the bouncer, which could have ended the flood.
gRPC has a bound of its own, but Arrow offers no way to set it, so threads beyond ours fail to start
(`bounded_threads.c`): gRPC then tells the caller that it is exhausted, without Python, and loaders try again.

Connections are watched by the threads of calls themselves. By default gRPC has a separate pool for that, which wakes up
three threads for every piece that a slow link takes: a seventh of the node's CPU time for raw files at 40 Mbit/s. A
relay is a client too, and keeps the pool.

Limits: the bound holds on 64-bit Linux, and only if the extension was built.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sophon.server import _call_threads as kernel
else:
    try:
        from sophon.server import _call_threads as kernel
    except ImportError:  # built without a compiler, or not on Linux
        kernel = None

_SPARE = 64  # for calls that are rejected, or wait for a seat
_WITHOUT_POOL = "-event_engine_listener"  # ignored by releases of gRPC that have nothing else


def watch_in_call_threads() -> None:
    """Have gRPC servers do without a pool of threads for their connections, before the first of them is made."""
    os.environ.setdefault("GRPC_EXPERIMENTS", _WITHOUT_POOL)


def bound_call_threads(requests: int) -> bool:
    """Bound the threads of this process's gRPC servers; return whether that is possible here.

    Args:
        requests: Requests that are answered at the same time; each has a thread as long as it lasts.
    """
    # gRPC would write two lines for each thread that fails to start, so that anybody could fill our log.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return kernel is not None and kernel.bound(requests + _SPARE)
