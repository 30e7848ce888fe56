"""CPU for ops: samples take turns on a fixed number of cores, and are turned away when the queue is too long.

Tenants share the cores by measured seconds (`tenants.shares`). A long task does not deprive other tenants of their
turns: a task in a child process is suspended after a while, and resumes when its tenant is next. A task in this process
cannot be suspended.

Concurrency: one thread per core works at a time, at a lower priority than the threads that read and send, so that raw
bytes always come first. As many further threads exist for suspended tasks, and when all of these are taken, one more
thread lets running and suspended tasks take turns. Limits: `cores` may be a fraction; the threads then pause while the
CPU time they have used exceeds their share. They do not pause if a cgroup quota limits the whole server to the same
share: the kernel stops them as soon as the quota is used up, and further pauses would only waste some of it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

from sophon.errors import ConfigError
from sophon.process.cores import quota_here
from sophon.process.threads import be_nice
from sophon.server.tenants.shares import HELD_COSTS, Share, Shares, Turn
from sophon.server.tenants.slot import Slot

T = TypeVar("T")

_LOOK_S = 1.0  # between two checks for a quota on this process, which may be set while it runs
_BURST_S = 0.1  # how many seconds' worth of the share may be used at once after a pause
_ABOUT = 1.05  # times the budget; a quota up to this counts as equal, since it is set in whole microseconds

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
        self._full = threading.Condition(self._lock)  # no thread is left that could look whose turn it is
        self._idle = 0  # threads without a task
        self._watcher: threading.Thread | None = None
        self._closed = False
        self._credit_s = _BURST_S * cores
        self._credited_at_s = time.monotonic()
        self._quota: float | None = None
        self._look_at_s = 0.0
        self._shares = Shares()
        self._running = 0  # running tasks, without suspended ones
        self._cores_whole = math.ceil(cores)
        self._threads: list[threading.Thread] = []
        for _ in range(self._cores_whole):
            self._start()

    def _start(self) -> None:
        number = len(self._threads)
        thread = threading.Thread(target=self._loop, args=(number,), name=f"sophon-op-{number}", daemon=True)
        self._threads.append(thread)
        thread.start()

    @property
    def slots(self) -> int:
        """How many tasks run or are suspended at once, each in its own slot."""
        return 2 * self._cores_whole

    @property
    def backlog_s(self) -> float:
        """How long all pending work would take."""
        return math.inf if self.cores == 0 else self._shares.work_s() / self.cores

    @property
    def queued(self) -> int:
        """How many tasks have not started."""
        with self._lock:
            return sum(len(share.queue) for share in self._shares.all())

    def submit(
        self, task: Task[T], patience_s: float, tenant: int = 0, *, is_first: bool = False
    ) -> Future[tuple[T, float]] | None:
        """Queue a task and return its future, or None if the task would wait longer than `patience_s`.

        The future's result is that of the task, with the CPU seconds that it took.

        Args:
            task: The task to run.
            patience_s: How long the task may wait.
            tenant: The tenant whose share the task uses.
            is_first: Whether the task comes before the other tasks of its tenant.
        """
        future: Future[tuple[T, float]] = Future()
        with self._lock:
            if not self._threads or self._closed:
                return None
            if patience_s < math.inf and self._shares.wait_s(tenant, self.cores) > patience_s:
                return None
            self._shares.add(tenant, (task, future), is_first)
            while self._shares.are_several and len(self._threads) < self.slots:
                self._start()  # not for a single tenant, which never has to wait for another's task
            if self._shares.are_several and self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="sophon-turns", daemon=True)
                self._watcher.start()
            self._changed.notify()
        return future

    def charge(self, tenant: int, cpu_s: float) -> None:
        """Charge a tenant for CPU seconds spent outside these threads."""
        with self._lock:
            self._shares.of(tenant).had_s += cpu_s

    def withdraw(self, futures: Iterable[Future[Any]]) -> None:
        """Remove abandoned tasks from the queue; running tasks continue."""
        cancelled = {future for future in futures if future.cancel()}
        if cancelled:
            with self._lock:
                self._shares.withdraw(cancelled)

    def _loop(self, number: int) -> None:
        be_nice()
        while True:
            with self._lock:
                while (found := self._next(number)) is None:
                    if self._closed:
                        return
                    _, look_s = self._shares.due(time.monotonic())
                    self._idle += 1
                    self._changed.wait(None if look_s == math.inf else max(look_s - time.monotonic(), 0.0))
                    self._idle -= 1
                if self._idle == 0 and self._watcher is not None:
                    self._full.notify()
            task, future, turn = found
            if future.set_running_or_notify_cancel():
                self._run(task, future, turn)
            else:
                self._ended(turn, 0.0)
            del task, future, found, turn  # these would keep a sample in memory while this thread waits

    def _next(self, number: int) -> tuple[Task[Any], Future[Any], Turn] | None:
        """Return the next task for this thread; resume a suspended one if it is next."""
        now_s = time.monotonic()
        while not self._closed:
            if self._running >= self._cores_whole and not self._make_place(now_s):
                return None
            share = self._shares.next()
            if share is None:
                return None
            if share.held:
                self._resume(share, now_s)
                continue
            self._running += 1
            task, future = share.queue.popleft()
            turn = Turn(share, Slot(number), now_s)
            turn.count(share.task_s)
            share.running.append(turn)
            return task, future, turn
        return None

    def _resume(self, share: Share, now_s: float) -> None:
        """Resume a tenant's suspended task."""
        turn = share.held.popleft()
        turn.since_s = now_s
        share.running.append(turn)
        self._running += 1
        turn.slot.go_on()

    def _watch(self) -> None:
        """Resume suspended tasks in the place of long ones whenever every other thread has a task."""
        with self._lock:
            while not self._closed:
                share, look_s = self._shares.next_held(), math.inf
                if self._idle == 0 and share is not None:
                    if self._make_place(time.monotonic(), share):
                        self._resume(share, time.monotonic())
                    look_s = self._shares.due(time.monotonic())[1]
                self._full.wait(None if look_s == math.inf else max(look_s - time.monotonic(), 0.0))

    def _make_place(self, now_s: float, but_not: Share | None = None) -> bool:
        """Suspend a long task if another tenant is waiting; return whether a task was suspended."""
        due = (turn for turn in self._shares.due(now_s)[0] if turn.share is not but_not)
        turn = next((turn for turn in due if turn.slot.hold()), None)
        if turn is None:
            return False
        # Not the time on the clock: on a busy machine that is far more, and what a task was charged too much is given
        # back when it ends, so that its tenant's next one could run for as long without a break.
        turn.ran_s = max(turn.ran_s, turn.slot.used_s(turn.ran_s + now_s - turn.since_s))
        turn.count(max(turn.counted_s, HELD_COSTS * turn.ran_s))
        self._credit_s -= turn.ran_s - turn.paid_s
        turn.paid_s = turn.ran_s
        turn.share.running.remove(turn)
        turn.share.held.append(turn)
        self._running -= 1
        return True

    def _run(self, task: Task[T], future: Future[tuple[T, float]], turn: Turn) -> None:
        self._pause()
        start_s = time.thread_time()
        try:
            result = task(turn.slot)
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            self._ended(turn, time.thread_time() - start_s + turn.slot.elsewhere_s)
            future.set_exception(error)
        else:
            cpu_s = time.thread_time() - start_s + turn.slot.elsewhere_s
            self._ended(turn, cpu_s)
            future.set_result((result, cpu_s))

    def _ended(self, turn: Turn, cpu_s: float) -> None:
        with self._lock:
            self._credit_s -= cpu_s - turn.paid_s
            turn.count(max(turn.counted_s, HELD_COSTS * cpu_s) if turn.ran_s else cpu_s)
            turn.share.measured(cpu_s)
            if turn in turn.share.running:
                turn.share.running.remove(turn)
                self._running -= 1
            else:  # the task ended just before it could be suspended
                turn.share.held.remove(turn)

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

    def close(self) -> None:
        """Let running tasks finish and drop the rest."""
        with self._lock:
            self._closed = True
            dropped = self._shares.clear()
            for turn in [turn for share in self._shares.all() for turn in share.held]:
                turn.slot.go_on()
            self._changed.notify_all()
            self._full.notify_all()
        for future in dropped:
            future.cancel()
        for thread in (*self._threads, *filter(None, (self._watcher,))):
            thread.join()
