"""Reports from torch's worker processes, in which a `RemoteDataset` runs, to the process that plans.

Each worker appends lines of JSON to one anonymous file, which the process that created it reads when an epoch begins or
the counts are requested. So no process waits for another, and all of them share one record and one plan.

Limits: Linux, where a spawned process finds the file through /proc; on other systems, workers do not report.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from typing import Any

from sophon.codec.cut import Cut
from sophon.link.transport import Fetch
from sophon.link.wire import Reply
from sophon.loader.account.stats import Stats
from sophon.loader.planning.planner import Planner
from sophon.pipeline import Key, Trace


class Ledger:
    """A file to which any process may append lines, and which its creator reads."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._read_bytes = 0
        with tempfile.TemporaryFile() as file:
            # Opened separately in each process, so that concurrent appends do not overwrite each other.
            self._file: int | None = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDWR | os.O_APPEND)

    @property
    def is_mine(self) -> bool:
        """Whether this is the process that reads the ledger."""
        return os.getpid() == self._owner

    def add(self, rows: list[list[Any]]) -> None:
        """Add some rows."""
        if self._file is not None and rows:
            os.write(self._file, "".join(json.dumps(row) + "\n" for row in rows).encode())

    def take(self) -> list[list[Any]]:
        """Return the rows that were added since the last call."""
        if self._file is None or not self.is_mine:
            return []
        size_bytes = os.fstat(self._file).st_size
        text = os.pread(self._file, size_bytes - self._read_bytes, self._read_bytes)
        self._read_bytes = size_bytes
        return [json.loads(line) for line in text.splitlines()]

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            os.close(self._file)  # type: ignore[arg-type]

    def __getstate__(self) -> dict[str, Any]:
        return {"owner": self._owner, "file": self._file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._owner, self._read_bytes, self._file = state["owner"], 0, None
        with contextlib.suppress(OSError):  # for example on another machine, or when the owner is gone
            self._file = os.open(f"/proc/{self._owner}/fd/{state['file']}", os.O_RDWR | os.O_APPEND)


class Reporter:
    """Reports what a worker process sees to the process that plans, in place of a `Planner`.

    Args:
        ledger: The ledger to write to.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._rows: list[list[Any]] = []

    def _name(self, request: int) -> int:
        """Return a number that identifies a request across processes."""
        return (os.getpid() << 32) + request

    def began(self, request: int, source: int = 0) -> None:  # noqa: ARG002 - one clock for all
        """Record that a request was sent."""
        self._rows.append(["began", self._name(request), time.monotonic()])

    def received(self, request: int, sample: int, reply: Reply, asked: Cut, fetch: Fetch) -> None:
        """Record that a reply has arrived."""
        waited = [float(fetch.computing_s), float(fetch.reading_s)]
        told = [len(reply.payload), float(reply.cpu_s), *waited, time.monotonic()]
        refused = str(asked) if reply.cut != asked else None
        self._rows.append(["received", self._name(request), sample, *told, refused, reply.reason])

    def ended(self, request: int) -> None:
        """Record that a stream has ended."""
        self._rows.append(["ended", self._name(request), time.monotonic()])

    def spent(self, samples: int, size_bytes: int, cpu_s: float) -> None:
        """Not recorded: a worker's cost of receiving is not that of the loader's own threads."""

    def finished(self, key: Key, reply: Reply, trace: Trace) -> None:
        """Record the time a sample took."""
        there = [float(reply.cpu_s), list(map(float, reply.op_s)), int(reply.raw_bytes), list(map(int, reply.size))]
        which = [int(key.epoch), int(key.sample), str(reply.cut), len(reply.payload)]
        self._rows.append(["finished", *which, trace.to_json(), *there])

    def flush(self, stats: Stats) -> None:
        """Write all pending rows, and the counts since the last call."""
        self._ledger.add([*self._rows, ["stats", stats.to_dict()]])
        self._rows.clear()


def replay(rows: list[list[Any]], planner: Planner | None, stats: Stats) -> None:
    """Pass the reports of worker processes to a planner and to the counts."""
    for name, *told in rows:
        if name == "stats":
            stats.merge(told[0])
        elif planner is not None:
            planner.hear(name, *told)
