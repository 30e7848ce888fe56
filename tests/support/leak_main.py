"""A training process that stops half-way and says what it left behind; tests start it in a group of its own."""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path

import sophon
from tests.support.servers import RECIPE

_WORKERS: set[int] = set()  # pids that were ever seen: a segment is named after its maker


def main(url: str, kind: str, how: str) -> None:
    """Begin an epoch, leave it, and print the names of what is still there."""
    settings = {"workers": "processes"} if kind == "processes" else {}
    # What is made once and kept for good, such as torch's own helpers, is there before we look.
    list(sophon.DataLoader(url, RECIPE, 4, num_workers=2, policy="none", **settings))
    gc.collect()
    before = _held()
    with contextlib.suppress(KeyError, KeyboardInterrupt):
        _leave(sophon.DataLoader(url, RECIPE, 2, num_workers=2, policy="none", **settings), how)
    gc.collect()
    end_s = time.monotonic() + 10
    while (left := _more(before, _held())) and time.monotonic() < end_s:
        time.sleep(0.05)
    sys.stdout.write(json.dumps(left) + "\n")


def _leave(loader: sophon.DataLoader, how: str) -> None:
    for number, _ in enumerate(loader):
        if number < 2:
            _held()  # learns who the workers are
            continue
        if how == "exception":
            raise KeyError("a bug of the user's")
        if how == "dropped":
            return
        os.killpg(0, signal.SIGINT)  # as a terminal does: to this process and its workers
        time.sleep(10)


def _held() -> dict[str, list[str]]:
    _WORKERS.update(child.pid or 0 for child in multiprocessing.active_children())
    mine = tuple(f"torch_{pid}_" for pid in (os.getpid(), *_WORKERS))
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "processes": [str(child.pid) for child in multiprocessing.active_children()],
        "files": sorted(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "segments": [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(mine)],
    }


def _more(before: dict[str, list[str]], after: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return what there is more of; gRPC keeps a few files for the next connection."""
    spare = {"files": 8}
    return {name: after[name] for name in after if len(after[name]) > len(before[name]) + spare.get(name, 0)}


if __name__ == "__main__":
    main(*sys.argv[1:])
