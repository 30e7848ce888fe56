"""CPU for ops: samples take turns on a fixed number of cores, and are refused when the queue is too long.

Concurrency: one thread per core, at a lower priority than the threads that read and send, so that raw bytes always come
first.
Limits: `cores` may be a fraction; the threads then pause while the CPU time they have used exceeds their share. They
do not where a cgroup's quota holds the whole server to no more than that: the kernel stops them as soon as it is used
up, and pauses of their own would only lose what it still allows.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from sophon.errors import ConfigError
from sophon.process.cores import quota_here

T = TypeVar("T")

NICE = 10
_LOOK_S = 1.0  # between two looks whether the kernel holds this process to a quota, which may be set while it runs
_BURST_S = 0.1  # how many seconds' worth of the share may be used at once after a pause
_ABOUT = 1.05  # times the budget: a quota is set in whole microseconds
_FIRST_GUESS_S = 0.005  # per task, until one has been measured: decoding and cropping a photo
_SMOOTHING = 0.05


@dataclass
class Slot:
    """Where a task runs, and how much CPU it used in other processes.

    Args:
        number: Number of the thread, from 0.
        elsewhere_s: CPU seconds that other processes spent on the task; tasks add to it.
    """

    number: int
    elsewhere_s: float = 0.0


Task: TypeAlias = Callable[[Slot], T]


class CpuBudget:
    """Runs tasks on a limited number of cores.

    Args:
        cores: Number of cores; 0 for none, fractions allowed.
    """

    def __init__(self, cores: float) -> None:
        if not (math.isfinite(cores) and 0 <= cores <= 4096):
            raise ConfigError(f"cores: expected a number in 0 … 4096, got {cores!r}")
        self.cores = cores
        # Reentrant: the garbage collector may close a dropped stream in a thread that holds this lock, and closing a
        # stream withdraws its tasks.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self._waiting = 0
        self._task_s = _FIRST_GUESS_S
        self._credit_s = _BURST_S * cores
        self._credited_at_s = time.monotonic()
        self._quota: float | None = None
        self._look_at_s = 0.0
        self._queue: deque[tuple[Task[Any], Future[Any]]] = deque()
        self._threads = [
            threading.Thread(target=self._loop, args=(number,), name=f"sophon-op-{number}", daemon=True)
            for number in range(math.ceil(cores))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def slots(self) -> int:
        """How many tasks run at once."""
        return len(self._threads)

    @property
    def backlog_s(self) -> float:
        """How long a task submitted now would wait."""
        return math.inf if self.cores == 0 else self._waiting * self._task_s / self.cores

    def submit(self, task: Task[T], patience_s: float) -> Future[tuple[T, float]] | None:
        """Queue a task, or return None if it would wait longer than `patience_s`.

        The future's result is the task's own, with the CPU seconds that the task took.
        """
        future: Future[tuple[T, float]] = Future()
        with self._lock:
            if not self._threads or self._closed or self.backlog_s > patience_s:
                return None
            self._waiting += 1
            self._queue.append((task, future))
            self._changed.notify()
        return future

    def withdraw(self, futures: Iterable[Future[Any]]) -> None:
        """Take tasks that nobody waits for any more out of the queue; tasks that are already running go on."""
        cancelled = {future for future in futures if future.cancel()}
        if not cancelled:
            return
        with self._lock:
            for item in [item for item in self._queue if item[1] in cancelled]:
                self._queue.remove(item)
                self._waiting -= 1

    def _loop(self, number: int) -> None:
        _be_nice()
        while True:
            with self._lock:
                while not self._closed and not self._queue:
                    self._changed.wait()
                if self._closed:
                    return
                task, future = self._queue.popleft()
            if future.set_running_or_notify_cancel():
                self._run(task, future, Slot(number))
            with self._lock:
                self._waiting -= 1
            del task, future  # they hold a sample, which must not be kept while this thread waits for the next task

    def _run(self, task: Task[T], future: Future[tuple[T, float]], slot: Slot) -> None:
        self._pause()
        start_s = time.thread_time()
        try:
            result = task(slot)
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            self._charge(time.thread_time() - start_s + slot.elsewhere_s)
            future.set_exception(error)
        else:
            cpu_s = time.thread_time() - start_s + slot.elsewhere_s
            self._charge(cpu_s)
            future.set_result((result, cpu_s))

    def _is_held_by_the_kernel(self) -> bool:
        now_s = time.monotonic()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + _LOOK_S
            self._quota = quota_here()
        return self._quota is not None and self._quota <= self.cores * _ABOUT

    def _pause(self) -> None:
        if self._is_held_by_the_kernel():
            return
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
        """Let running tasks finish, and drop the rest."""
        with self._lock:
            self._closed = True
            dropped, self._queue = self._queue, deque()
            self._changed.notify_all()
        for _, future in dropped:
            future.cancel()
        for thread in self._threads:
            thread.join()


def _be_nice() -> None:
    # Linux schedules each thread by its own priority; elsewhere this would slow down the whole process.
    if hasattr(os, "sched_setaffinity"):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
