"""One job at a time in a thread of its own, without anybody waiting for it.

Concurrency: may be told by any thread, and by the garbage collector in any of them: to abandon a job takes no lock. A
job looks now and then whether it is still wanted, and puts its result in place only if it is. Its thread is no daemon,
so that the interpreter waits at its end until the job has noticed, instead of stopping it with a lock in its hand. In a
forked child nothing is under way.
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
        run: Called with the job, which it asks whether it is still wanted.
    """

    def __init__(self, run: Callable[[Job], None]) -> None:
        self.error: BaseException | None = None
        self.is_abandoned = False
        self._run = run
        self.thread = threading.Thread(target=self._do, name=f"sophon-plan-{next(_numbers)}", daemon=False)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody still waits for what comes out: nobody did give it up, and the interpreter goes on."""
        return not self.is_abandoned and threading.main_thread().is_alive()

    def _do(self) -> None:
        try:
            self._run(self)
        except BaseException as error:  # noqa: BLE001 - told by `Background.check`, in a thread that is listened to
            self.error = error if self.is_wanted else None


class Background:
    """Runs jobs one after the other, never two at once."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget, in a forked child, the thread that stayed with the parent."""
        self._lock = threading.Lock()
        self._job: Job | None = None

    def start(self, run: Callable[[Job], None]) -> bool:
        """Do something, unless the job before is still under way; return whether it was begun."""
        with self._lock:
            job = Job(run)
            if not job.is_wanted or (self._job is not None and self._job.thread.is_alive()):
                return False
            try:
                job.thread.start()
            except RuntimeError:  # no more threads to be had
                return False
            self._job = job
            return True

    def abandon(self) -> None:
        """Give up what is under way; its thread ends as soon as it notices."""
        job = self._job
        if job is not None:
            job.is_abandoned = True

    def check(self) -> None:
        """Raise the error that ended a job which was still wanted, once."""
        job = self._job
        if job is not None and job.error is not None:
            self._job = None
            raise job.error
