"""A training process that stops half-way, in every way, and says what it left behind; it has a group of its own."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import sophon
from sophon.pipeline import Kind, Op, Pipeline
from tests.support.servers import RECIPE
from tests.support.settings import grouped
from tests.support.waiting import HANG_S

HOWS = ("consumer", "op", "ctrl-c", "ctrl-c-waiting", "dropped", "cycle", "closed")
_TIMES = 2  # each, so that what a first time leaves for good, such as gRPC's pool of files, is not taken for a leak
_WORKERS: set[int] = set()  # pids that were ever seen: a segment is named after its maker


@dataclass(frozen=True)
class Trip(Op):
    """Pass a tensor on; from a sample on raise, or take very long."""

    takes: ClassVar[Kind] = Kind.TENSOR
    how: str = ""

    def output(self, spec: Any) -> Any:
        return spec

    def draw(self, rng: Any, spec: Any) -> int:  # noqa: ARG002 - part of the contract
        return int(rng._stream[3])

    def apply(self, value: Any, params: int) -> Any:
        if params >= 8 and self.how == "op":
            raise ValueError("a bug in an op")
        if params >= 8 and self.how == "ctrl-c-waiting":
            time.sleep(0.5)  # the consumer waits for it when the signal comes
        return value


def main(url: str, kind: str, *hows: str) -> None:
    """Leave epochs in several ways; print for each the names of what is still there."""
    # A shell gives its background jobs a SIGINT that is ignored, and so do those who inherit it from them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    left = {}
    for how in hows:
        _leave_safely(url, kind, how)
        before = _settled()
        for _ in range(_TIMES):
            _leave_safely(url, kind, how)
        end_s = time.monotonic() + HANG_S
        while (more := _more(before, _held())) and time.monotonic() < end_s:
            time.sleep(0.05)
        if more:
            left[how] = more
    sys.stdout.write(json.dumps(left) + "\n")


def _leave_safely(url: str, kind: str, how: str) -> None:
    settings: dict[str, Any] = {"kind": "processes"} if kind == "processes" else {"order": "relaxed"}
    if kind == "persistent":
        settings = {"kind": "processes", "persistent_workers": True}
    if kind == "none":
        settings = {"num_workers": 0}
    pipeline = Pipeline([*RECIPE.ops, Trip(how)])
    expected = {"consumer": KeyError, "op": sophon.Error, "ctrl-c": KeyboardInterrupt}
    loader = sophon.DataLoader(
        url, pipeline, **grouped(batch_size=2, **{"num_workers": 2, "policy": "none", **settings})
    )
    wanted = expected.get(how.removesuffix("-waiting"))
    try:
        _leave(loader, how)
        assert wanted is None, f"{how}: nothing was raised"
    except (KeyError, ValueError, sophon.Error, KeyboardInterrupt) as error:
        if wanted is None or not isinstance(error, wanted):
            raise
    del loader
    gc.collect()


def _leave(loader: sophon.DataLoader, how: str) -> None:
    batches = iter(loader)
    if how == "ctrl-c-waiting":
        # As a terminal does: to this process and its workers, while it waits for a batch that takes long.
        threading.Timer(0.4, os.killpg, (0, signal.SIGINT)).start()
    for number, _ in enumerate(batches):
        if number < 2:
            _held()  # learns who the workers are
            continue
        if how == "consumer":
            raise KeyError("a bug of the user's")
        if how == "ctrl-c":
            os.killpg(0, signal.SIGINT)
            time.sleep(HANG_S)
        if how == "closed":
            batches.close()  # type: ignore[attr-defined]
            return
        if how == "dropped":
            return
        if how == "cycle":  # only the garbage collector finds it
            ring: list[Any] = [batches]
            ring.append(ring)
            return


def _settled() -> dict[str, list[str]]:
    """Return what is held when it has stopped becoming less."""
    held, end_s = _held(), time.monotonic() + 2.0
    while time.monotonic() < end_s:
        time.sleep(0.05)
        now = _held()
        if now == held and not now["processes"]:
            break
        held = now
    return held


def _held() -> dict[str, list[str]]:
    _WORKERS.update(child.pid or 0 for child in multiprocessing.active_children())
    mine = tuple(f"torch_{pid}_" for pid in (os.getpid(), *_WORKERS))
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "processes": _children(),
        "files": sorted(_files()),
        "segments": [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(mine)],
    }


def _children() -> list[str]:
    """Return the children of this process, also those that multiprocessing does not know, and those not waited for."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += (task / "children").read_text().split()
    return found


def _files() -> list[str]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.readlink(link))  # noqa: PTH115 - of a pipe or socket, which are no paths
    return found


def _more(before: dict[str, list[str]], after: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: after[name] for name in after if len(after[name]) > len(before[name])}


if __name__ == "__main__":
    main(*sys.argv[1:])
