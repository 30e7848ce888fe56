"""OpenCV and fork: in a child it works without its pool of threads.

Those threads stay with the parent, and one of them may hold the pool's lock at the moment of the fork; then the child
waits for it at its next call, forever (3 of 3,000 forks on a busy machine). Without the pool nothing is slower there:
the thread that calls would do all the work anyway. People who know tell OpenCV so in a `worker_init_fn`.

Limits: OpenCV's own pool, which its wheels have; builds with OpenMP or TBB are left as they are.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys

_OWN_POOL = re.compile(r"Parallel framework:\s+pthreads")


@functools.cache
def alone_after_fork() -> None:
    """Have OpenCV, wherever it is imported, work without its pool in every forked child."""
    os.register_at_fork(after_in_child=_without_pool)


def _without_pool() -> None:
    cv2 = sys.modules.get("cv2")
    with contextlib.suppress(AttributeError):  # half imported, or something else of that name
        if cv2 is not None and _OWN_POOL.search(cv2.getBuildInformation()):
            cv2.setNumThreads(0)  # takes no lock
