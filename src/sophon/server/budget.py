"""CPU for ops: a number of cores that is never exceeded, given to samples in turn, refused when the queue is too long.

Concurrency: worker threads, since Pillow, NumPy and zstd release the interpreter's lock while they work. They run at a
lower priority than the threads that read and send, so that raw bytes always come first.
Limits: `cores` may be a fraction; then the workers pause as long as the CPU time they have used is ahead of the share.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from sophon.errors import ConfigError

T = TypeVar("T")

_NICE = 10
_BURST_S = 0.1  # of the share that may be used at once after a pause
_FIRST_GUESS_S = 0.005  # per task, until one has been measured: decode and crop of a photo
_SMOOTHING = 0.05


class CpuBudget:
    """Runs tasks on at most so many cores.

    Args:
        cores: How many; 0 for none, fractions allowed.
    """

    def __init__(self, cores: float) -> None:
        if not (math.isfinite(cores) and 0 <= cores <= 4096):
            raise ConfigError(f"cores: expected a number in 0 … 4096, got {cores!r}")
        self.cores = cores
        self._pool = ThreadPoolExecutor(math.ceil(cores), "sophon-op", initializer=_be_nice) if cores > 0 else None
        self._lock = threading.Lock()
        self._waiting = 0
        self._task_s = _FIRST_GUESS_S
        self._credit_s = _BURST_S * cores
        self._credited_at_s = time.monotonic()

    @property
    def backlog_s(self) -> float:
        """How long a task would wait that is submitted now."""
        return math.inf if self.cores == 0 else self._waiting * self._task_s / self.cores

    def submit(self, task: Callable[[], T], patience_s: float) -> Future[tuple[T, float]] | None:
        """Queue a task; its result comes with the CPU seconds it took. None if it would wait longer than that."""
        with self._lock:
            if self._pool is None or self.backlog_s > patience_s:
                return None
            self._waiting += 1
        return self._pool.submit(self._run, task)

    def _run(self, task: Callable[[], T]) -> tuple[T, float]:
        try:
            self._pause()
            start_s = time.thread_time()
            try:
                return task(), time.thread_time() - start_s
            finally:
                self._charge(time.thread_time() - start_s)
        finally:
            with self._lock:
                self._waiting -= 1

    def _pause(self) -> None:
        while True:
            with self._lock:
                now_s = time.monotonic()
                earned_s = (now_s - self._credited_at_s) * self.cores
                self._credit_s = min(self._credit_s + earned_s, _BURST_S * self.cores)
                self._credited_at_s = now_s
                missing_s = -self._credit_s
            if missing_s <= 0:
                return
            time.sleep(missing_s / self.cores)

    def _charge(self, cpu_s: float) -> None:
        with self._lock:
            self._credit_s -= cpu_s
            self._task_s += _SMOOTHING * (cpu_s - self._task_s)

    def close(self) -> None:
        """Let running tasks end and drop the rest."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def _be_nice() -> None:
    # On Linux a thread is a process to the scheduler; elsewhere this would slow everything down, so it is left out.
    if hasattr(os, "sched_setaffinity"):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
