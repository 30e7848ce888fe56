"""Second requests for late answers.

Handing a request to another thread costs about 50 µs, which does not pay off with a quick server. So requests are made
by the thread that needs them until stragglers appear: one request in a hundred takes four times the median, and long
enough to matter. From then on each request runs in another thread, which is kept for later requests. If a request is
not answered within the time that 95 % of requests take, it is made a second time, and the first answer is used. Once
there are no stragglers, requests are made directly again.

Concurrency: one object is shared by all threads; a lost update does no harm. Idle threads end after `_IDLE_S`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, Queue, SimpleQueue
from typing import Final, TypeVar

from sophon.process.renewal import renew_after_fork

T = TypeVar("T")

_LATEST: Final = 256
_ENOUGH: Final = 100  # requests before anything is known about the slowest
_IDLE_S: Final = 0.2  # how long an idle thread waits for a request
_EVERY: Final = 32  # requests between two checks
_TIMES: Final = 4.0
_MATTERS_S: Final = 0.1
_MOST_SHARE: Final = 0.05  # share of requests made twice: a struggling server must not get twice the load


class _Threads:
    """A pool of reusable daemon threads for requests: starting a thread takes as long as the request's own work."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start over without threads in a forked child."""
        self._lock = threading.Lock()
        # No SimpleQueue: with several readers its `get` may wait forever once its timeout is over (CPython 3.11).
        self._jobs: Queue[Callable[[], None]] = Queue()
        self._idle = 0  # waiting threads that no job has been assigned to

    def start(self, job: Callable[[], None]) -> None:
        """Run a job in an idle thread, or in a new one."""
        with self._lock:
            has_idle = self._idle > 0
            self._idle -= has_idle
        if has_idle:
            self._jobs.put(job)
        else:
            # A daemon: an abandoned request must not keep the process alive.
            threading.Thread(target=self._work, args=(job, self._jobs), name="sophon-get", daemon=True).start()

    def _work(self, job: Callable[[], None], jobs: Queue[Callable[[], None]]) -> None:
        while True:
            job()
            del job  # frees the bytes that were read
            with self._lock:
                self._idle += 1
            try:
                job = jobs.get(timeout=_IDLE_S)
            except Empty:
                with self._lock:
                    if self._idle > 0:
                        self._idle -= 1
                        return
                job = jobs.get()  # assigned to this thread just now


class Hedge:
    """Makes requests and measures how long they take.

    Args:
        on_won: Called when a second request was answered first.
    """

    def __init__(self, on_won: Callable[[], None]) -> None:
        self._on_won = on_won
        self._latest_s: deque[float] = deque(maxlen=_LATEST)
        self._seen = 0
        self._seconds = 0
        self.late_s: float | None = None
        self._threads = _Threads()

    def call(self, request: Callable[[], T], on_second: Callable[[], None]) -> T:
        """Make a request; if a second one is made, call `on_second`."""
        late_s = self.late_s
        if late_s is None or self._seconds > _MOST_SHARE * self._seen:
            return request()
        return self._with_second(request, late_s, on_second)

    def learn(self, seconds: float) -> None:
        """Record how long a request took."""
        self._latest_s.append(seconds)
        self._seen += 1
        if self._seen < _ENOUGH or self._seen % _EVERY:
            return
        latest_s = sorted(self._latest_s.copy())
        half_s, most_s = latest_s[len(latest_s) // 2], latest_s[len(latest_s) * 19 // 20]
        slowest_s = latest_s[len(latest_s) * 99 // 100]
        has_stragglers = slowest_s > max(_TIMES * half_s, _MATTERS_S)
        self.late_s = max(most_s, _TIMES / 2 * half_s, _MATTERS_S / 2) if has_stragglers else None

    def _with_second(self, request: Callable[[], T], late_s: float, on_second: Callable[[], None]) -> T:
        came: SimpleQueue[tuple[int, T | None, Exception | None]] = SimpleQueue()

        def make(number: int) -> None:
            try:
                came.put((number, request(), None))
            except Exception as error:  # noqa: BLE001 - raised again in the thread that waits
                came.put((number, None, error))

        def start(number: int) -> None:
            self._threads.start(partial(make, number))

        start(1)
        try:
            first = came.get(timeout=late_s)
        except Empty:
            self._seconds += 1
            on_second()
            start(2)
            first = came.get()
            if first[2] is not None:
                first = came.get()
            if first[0] == 2:
                self._on_won()
        _, found, error = first
        if error is not None:
            raise error
        return found  # type: ignore[return-value]
