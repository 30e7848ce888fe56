"""Reading: many concurrent reads of one store, in threads separate from those that need the bytes.

A read is a *job*: a function that reads one sample or a run of them; the result is passed on once it has been counted.
The jobs of one request wait in a *queue*; queues take turns, so that a long request does not hold up a short one.

How many concurrent reads pay off depends on how long one takes: a store whose reads take 50 ms gives 20 samples a
second to one reader and 1,280 to sixty-four, while files in the page cache take 50 µs each, and more than a few readers
would only contend with each other. So the number of readers is chosen to give `_WANTED_PER_S` at the measured read time
(Little's law), or `_WANTED_BYTES_PER_S` if files are large, within the bounds. For the same reason a job should read
several samples if reads are quick, and one if they are slow: see `run_samples`.

A read that takes much CPU, such as decoding a large Parquet row group for one sample, takes no longer than the cores
need for it: more readers than cores would only take the cores from other work. Such reads are done at a lower priority.

A read that does not return cannot be stopped. After `HUNG_S` it no longer counts, so that other reads can start;
only when `most` reads hang does reading from that store stop.

Concurrency: each job runs in a thread of the stage. Threads are started when there is something to read. They end after
`_IDLE_S` without work, or at once if no queue is open and they do not linger. `ReadQueue.close` may be called by the
garbage collector in a thread that holds the stage's lock; it does not change any state that the holder relies on.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sophon.errors import ConfigError
from sophon.process.cores import cores_here
from sophon.process.renewal import renew_after_fork
from sophon.process.threads import be_nice

MOST_READS = 64  # enough to saturate a disk array or a network file system; a thread costs about 30 KB
MOST_BYTES = 256 << 20  # of samples being read: 64 reads of 4 MB each
HUNG_S = 10.0  # a hundred times the read time of a healthy store
_WANTED_PER_S = 4_000.0  # reads; with photos of 100 KB that is 400 MB/s, about what a core can send
_WANTED_BYTES_PER_S = 1e9  # a link of 8 Gbit/s; two readers of scans of 5 MB in the page cache give more
QUICK_S = 0.001
"""Duration of a quick read; at that speed two fetching threads get 2,000 samples a second on their own."""
HEAVY_CPU_S = 0.02
"""CPU seconds of a read that is work for a core rather than waiting; a photo from an object store takes 1 to 2 ms."""
_LOCKED_S = 0.01  # twice the switch interval of Python's lock
_LATEST = 16  # number of recent reads considered
_LEAST_AT_ONCE = 2  # one reads while the other waits for a slow file
_RUN_S = 0.02  # length of a job that reads several samples: queues take turns between jobs
_IDLE_S = 5.0  # how long a thread waits for the next read: on a slow link requests are seconds apart
_WEIGHT = 0.2  # weight of the newest job in the average read time

Job = Callable[[], Callable[[], None] | None]
"""Reads samples, and returns a function that passes on the result, or None; neither may raise."""

_told = threading.local()


def tell_took(seconds: float) -> None:
    """Report how long this thread's job spent on reading, if that is known better than from the job's duration.

    On a busy machine, a job spends most of its time waiting for the GIL or a core, and a quick store would look slow.
    """
    _told.seconds = seconds


@dataclass(slots=True)
class _Waiting:
    job: Job
    samples: int
    size_bytes: int


@dataclass(slots=True)
class _UnderWay:
    since_s: float
    size_bytes: int
    has_hung: bool = False


class Reading:
    """The reading stage of one store.

    Args:
        most: Highest number of concurrent reads.
        most_bytes: Bytes of the samples that are being read, beyond which no further read begins.
        lingers: Whether threads wait a moment for another queue after the last one is closed.
    """

    def __init__(self, most: int = MOST_READS, most_bytes: int = MOST_BYTES, lingers: bool = False) -> None:
        if most < 1 or most_bytes < 1:
            raise ConfigError(f"expected at least 1 concurrent read and 1 byte, got {most} and {most_bytes}")
        self.most = most
        self.most_bytes = most_bytes
        self._lingers = lingers
        self.read_s = 0.0
        self.read_bytes = 0
        self.reads = 0
        self._each_s: float | None = None
        self._each_bytes = 0.0
        self._each_cpu_s = 0.0
        self._latest_s: deque[float] = deque(maxlen=_LATEST)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start over in a forked child, which does not have the threads."""
        self._lock = threading.RLock()  # reentrant: the garbage collector may close a queue at any moment
        self._queues: deque[ReadQueue] = deque()  # queues with something to read, in turn
        self._under_way: dict[int, _UnderWay] = {}
        self._under_way_bytes = 0
        self._hung = 0
        self._idle: list[threading.Condition] = []  # one condition per idle thread
        self._coming = 0  # threads that were woken or started, or have ended a job, and have not looked for a job yet
        self._open = 0
        self._number = 0
        self._is_closed = False

    @property
    def each_s(self) -> float | None:
        """Recent read time of a sample; None before the first read."""
        return self._each_s

    @property
    def is_quick(self) -> bool:
        """Whether reads are so quick that passing bytes between threads would cost more than reading them.

        A quick read may look slow, since its thread then waits for the GIL. So one quick read in four
        indicates a quick store, unless the others are slower than the lock can explain.
        """
        latest_s = sorted(self._latest_s.copy())  # a copy, since other threads add to it
        return bool(latest_s) and latest_s[(len(latest_s) - 1) // 4] < QUICK_S and (self._each_s or 0.0) < _LOCKED_S

    @property
    def at_once(self) -> int:
        """How many concurrent reads pay off."""
        if self._each_s is None:
            return min(_LEAST_AT_ONCE, self.most)
        wanted_per_s = min(_WANTED_PER_S, _WANTED_BYTES_PER_S / max(self._each_bytes, 1.0))
        most = min(self.most, max(cores_here(), _LEAST_AT_ONCE)) if self.is_heavy else self.most
        return min(max(math.ceil(wanted_per_s * self._each_s), _LEAST_AT_ONCE), most)

    @property
    def is_heavy(self) -> bool:
        """Whether reads take so much CPU that cores bound them."""
        return self._each_cpu_s >= HEAVY_CPU_S

    @property
    def run_samples(self) -> int:
        """How many samples one job should read."""
        return 1 if self._each_s is None else max(int(_RUN_S / max(self._each_s, 1e-6)), 1)

    @property
    def under_way(self) -> int:
        """How many reads are running, including those that hang."""
        return len(self._under_way)

    @property
    def under_way_bytes(self) -> int:
        """Bytes of the samples that are being read."""
        return self._under_way_bytes

    def queue(self, *, in_order: bool = False) -> ReadQueue:
        """Return a queue for the reads of one request; if `in_order`, each starts after the previous one has ended."""
        return ReadQueue(self, in_order)

    def learn(self, seconds: float, samples: int = 1, size_bytes: int = 0, cpu_s: float = 0.0) -> None:
        """Record the duration, size and CPU time of a read made elsewhere or by a job."""
        each_s, each_bytes = seconds / max(samples, 1), size_bytes / max(samples, 1)
        known = self._each_s
        self._latest_s.append(each_s)
        # A lost update between threads does no harm beyond a slightly worse mean.
        self._each_s = each_s if known is None else known + _WEIGHT * (each_s - known)
        weight = 1.0 if known is None else _WEIGHT
        self._each_bytes += weight * (each_bytes - self._each_bytes)
        self._each_cpu_s += weight * (cpu_s / max(samples, 1) - self._each_cpu_s)

    def add(self, queue: ReadQueue, waiting: _Waiting) -> None:
        """Queue a read."""
        with self._lock:
            if not queue.waiting:
                self._queues.append(queue)
            queue.waiting.append(waiting)
            self._staff()

    def staff(self) -> None:
        """Start threads as needed; called from time to time by waiting threads, since a read may hang."""
        with self._lock:
            self._staff()

    def close(self) -> None:
        """Start no more reads; running reads are not interrupted."""
        with self._lock:
            self._is_closed = True
            self._queues.clear()
            self._wake_all()

    # --- called with the lock held ------------------------------------------------------------------------------------

    def _staff(self) -> None:
        """Wake or start a thread, if one more read may start."""
        if self._is_closed or not self._queues or not self._may_start():
            return
        if self._idle:
            self._wake()
            return
        self._number += 1
        thread = threading.Thread(target=self._work, args=(self._number,), name=f"sophon-read-{self._number}")
        thread.daemon = True  # a read that hangs must not keep the process alive
        thread.start()
        self._coming += 1

    def _wake(self) -> None:
        """Wake the thread that was busy last: its memory is still in the CPU's caches, and surplus threads time out."""
        self._idle.pop().notify()
        self._coming += 1

    def _wake_all(self) -> None:
        while self._idle:
            self._wake()

    def _may_start(self) -> bool:
        """Return whether one more read may start, apart from those that coming threads will start."""
        at_once = self.at_once
        if len(self._under_way) - self._hung + self._coming >= at_once:
            self._look_for_hung()
        running = len(self._under_way) - self._hung + self._coming
        return running < at_once and (running == 0 or self._under_way_bytes < self.most_bytes)

    def _look_for_hung(self) -> None:
        late_s = time.monotonic() - HUNG_S
        for read in self._under_way.values():
            if self._hung < self.most and not read.has_hung and read.since_s < late_s:
                read.has_hung = True
                self._hung += 1

    def _take(self) -> tuple[ReadQueue, _Waiting] | None:
        """Take the next job from the queue whose turn it is."""
        for _ in range(len(self._queues)):
            queue = self._queues.popleft()
            if queue.in_order and queue.under_way:
                self._queues.append(queue)
                continue
            try:
                waiting = queue.waiting.popleft()
            except IndexError:  # it was closed in the meantime
                continue
            if queue.waiting:
                self._queues.append(queue)
            queue.under_way += 1
            return queue, waiting
        return None

    # --- in the threads of the stage ----------------------------------------------------------------------------------

    def _work(self, number: int) -> None:
        is_nice = False
        while True:
            with self._lock:
                self._coming -= 1
                taken = self._await()
                if taken is None:
                    return
                queue, waiting = taken
                self._under_way[number] = _UnderWay(time.monotonic(), waiting.size_bytes)
                self._under_way_bytes += waiting.size_bytes
                self._staff()  # take the next job, if there is one
            if self.is_heavy and not is_nice:
                be_nice()
                is_nice = True
            start_s, start_cpu_s, pass_on, _told.seconds = time.monotonic(), time.thread_time(), None, None
            try:
                if not queue.is_closed:
                    pass_on = waiting.job()
            finally:
                took_s = time.monotonic() - start_s if _told.seconds is None else _told.seconds
                self._ended(number, queue, waiting, took_s, time.thread_time() - start_cpu_s)
            if pass_on is not None:
                pass_on()
            del taken, queue, waiting, pass_on  # these would keep the request alive while this thread waits

    def _await(self) -> tuple[ReadQueue, _Waiting] | None:
        """Wait for a job; None if this thread should end."""
        while not self._is_closed:
            if self._queues and self._may_start() and (taken := self._take()) is not None:
                return taken
            if not self._open and not self._lingers:
                return None
            wanted = threading.Condition(self._lock)
            self._idle.append(wanted)
            # Not forever, so that nothing depends on every wake-up reaching the right thread.
            wanted.wait(_IDLE_S)
            if wanted not in self._idle:  # woken, perhaps just as the time was up
                self._coming -= 1
                continue
            self._idle.remove(wanted)
            if not self._queues:
                return None
        return None

    def _ended(self, number: int, queue: ReadQueue, waiting: _Waiting, seconds: float, cpu_s: float) -> None:
        with self._lock:
            self._coming += 1  # passing on takes a moment; another thread in its place would be one too many
            read = self._under_way.pop(number, None)
            if read is None:  # after a fork: a read of the parent process
                return
            queue.under_way -= 1
            self._hung -= read.has_hung
            self._under_way_bytes -= read.size_bytes
            if queue.is_closed:
                return
            self.learn(seconds, waiting.samples, waiting.size_bytes, cpu_s)
            for sums in (self, queue):
                sums.read_s += seconds
                sums.read_bytes += waiting.size_bytes
                sums.reads += waiting.samples

    def opened(self, by: int) -> None:
        """Count the queues that are open."""
        with self._lock:
            self._open = max(self._open + by, 0)  # after a fork, queues of the parent may still be closed
            if not self._open and not self._lingers:
                self._wake_all()


class ReadQueue:
    """The reads of one request.

    Args:
        reading: The stage.
        in_order: Whether each read starts only after the previous one has ended.

    Attributes:
        waiting: Jobs that have not started.
        under_way: Number of jobs that have started and not ended.
        read_s: Sum of the seconds that each read took, even if reads overlapped.
        read_bytes: Bytes of the samples read.
        reads: Samples read.
    """

    def __init__(self, reading: Reading, in_order: bool) -> None:
        self._reading = reading
        self.in_order = in_order
        self.under_way = 0
        self.waiting: deque[_Waiting] = deque()
        self.is_closed = False
        self._is_open = False
        self.read_s = 0.0
        self.read_bytes = 0
        self.reads = 0

    def add(self, job: Job, samples: int, size_bytes: int) -> None:
        """Queue a read.

        Args:
            job: What does the reading; see `Job`.
            samples: How many samples the job reads.
            size_bytes: Size of these samples, in bytes.
        """
        if not self._is_open:
            self._is_open = True
            self._reading.opened(1)
        self._reading.add(self, _Waiting(job, samples, size_bytes))

    def close(self) -> None:
        """Drop jobs that have not started; results of running ones are discarded."""
        self.is_closed = True
        self.waiting.clear()
        if self._is_open:
            self._is_open = False
            self._reading.opened(-1)
