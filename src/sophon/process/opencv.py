"""OpenCV and fork: in a child, OpenCV runs without its thread pool.

The pool's threads stay with the parent, and one of them may hold the pool's lock at the moment of the fork; the child's
next call would then wait forever (3 of 3,000 forks on a busy machine). Nothing is slower without the pool: in the child
the calling thread does all the work anyway. The usual remedy is to disable the pool in a `worker_init_fn`; this does it
for everyone.

Limits: this covers only OpenCV's own pool, the one in its wheels; builds with OpenMP or TBB are not changed.
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
    """Disable OpenCV's thread pool in every forked child, if OpenCV is imported."""
    os.register_at_fork(after_in_child=_without_pool)


def _without_pool() -> None:
    cv2 = sys.modules.get("cv2")
    with contextlib.suppress(AttributeError):  # partly imported, or another module of that name
        if cv2 is not None and _OWN_POOL.search(cv2.getBuildInformation()):
            cv2.setNumThreads(0)  # takes no lock
