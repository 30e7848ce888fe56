"""Runs one job at a time in a separate thread; no caller waits for it.

Concurrency: may be called from any thread, and by the garbage collector in any of them: abandoning a job takes no lock.
A job checks from time to time whether it is still wanted, and applies its result only if it is. Its thread is not a
daemon, so that the interpreter waits at exit until the job has noticed, instead of stopping it while it holds a lock.
In a forked child nothing is running.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from sophon.process.renewal import renew_after_fork

_numbers = itertools.count()


class Job:
    """A job that runs in the background.

    Args:
        run: Called with the job, so that it can check whether the result is still wanted.
    """

    def __init__(self, run: Callable[[Job], None]) -> None:
        self.error: BaseException | None = None
        self.is_abandoned = False
        self._run = run
        self.thread = threading.Thread(target=self._do, name=f"sophon-plan-{next(_numbers)}", daemon=False)

    @property
    def is_wanted(self) -> bool:
        """Whether the result is still wanted: it was not abandoned, and the interpreter is not exiting."""
        return not self.is_abandoned and threading.main_thread().is_alive()

    def _do(self) -> None:
        try:
            self._run(self)
        except BaseException as error:  # noqa: BLE001 - raised again by `Background.check`, in the caller's thread
            self.error = error if self.is_wanted else None


class Background:
    """Runs jobs one after the other, never two at once."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child, forget the thread, which stayed with the parent."""
        self._lock = threading.Lock()
        self._job: Job | None = None

    def start(self, run: Callable[[Job], None]) -> bool:
        """Start a job, unless the previous one is still running; return whether it was started."""
        with self._lock:
            job = Job(run)
            if not job.is_wanted or (self._job is not None and self._job.thread.is_alive()):
                return False
            try:
                job.thread.start()
            except RuntimeError:  # no more threads available
                return False
            self._job = job
            return True

    def abandon(self) -> None:
        """Abandon the running job; its thread ends as soon as it notices."""
        job = self._job
        if job is not None:
            job.is_abandoned = True

    def check(self) -> None:
        """Raise, once, the error that ended a job that was still wanted."""
        job = self._job
        if job is not None and job.error is not None:
            self._job = None
            raise job.error
