"""Worker processes, seen from the loader: they finish samples in shared memory and run the user's own code.

Fetching, planning, order and statistics stay with the loader. A worker gets a payload through its line, writes the
finished sample into its place in the batch, and reports it; a result without a place, or one made by the user's own
`collate_fn`, comes back as a parcel.

Workers are forked when an epoch starts, before it has threads or connections, so lambdas work and a worker sees the
user's objects as they are then; or spawned, if the platform has no fork or the user asks for it.

Concurrency: each worker has a lock, under which one thread at a time talks to it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.process
import os
import signal
import threading
from collections import deque
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np

from sophon.errors import ConfigError, PayloadError, WorkerError
from sophon.link.wire import Reply
from sophon.loader.epoch import child
from sophon.loader.epoch.batch import SMALL_BYTES, Batch, Place
from sophon.loader.epoch.collate import Collate as CollateFn
from sophon.loader.epoch.finishers import Finisher, Finishers
from sophon.loader.epoch.finishing import Finishing, Made
from sophon.loader.epoch.messages import (
    Collate,
    Collated,
    Finish,
    Finished,
    Spot,
    packed_inline,
    receive,
    send,
    unpacked,
)
from sophon.loader.epoch.parcel import CannotPickle
from sophon.pipeline import Key, Tensor
from sophon.process.line import Line, LineClosedError
from sophon.process.segments import Segment, Segments, array_in

_START_S = 120.0  # a spawned process imports torch, on a busy machine; a forked one needs a millisecond
_END_S = 1.0  # for an idle worker to end before it is sent a signal


class SharedMemory:
    """Arrays in memory that worker processes map.

    Args:
        most_bytes: Bound on the bytes kept for later.
    """

    def __init__(self, most_bytes: int) -> None:
        self.segments = Segments(most_bytes)

    def array(self, shape: tuple[int, ...], dtype: str) -> tuple[Segment | None, Tensor]:
        """Return an array and the segment that contains it, unless it is small."""
        size_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if size_bytes <= SMALL_BYTES:
            return None, np.empty(shape, dtype)
        segment, memory = self.segments.take(size_bytes)
        return segment, array_in(memory, shape, dtype)


class Workers(Finishers):
    """The worker processes of a loader.

    Args:
        count: How many.
        method: How they are started: "fork", "spawn", "forkserver", a context of `multiprocessing`, or None for "fork"
            if available.
        finishing: How samples are finished.
        collate: The user's own function that makes batches, if any.
        kept_bytes: Bound on the memory of batches that is kept for the next ones.
        init: The user's own function, called in each process with its number when it starts.
        dataset: The data set reported to the processes.

    Attributes:
        is_kept: Whether the processes stay when an epoch ends.
        is_busy: Whether an epoch uses them.
    """

    writes_alone = True

    def __init__(
        self,
        count: int,
        method: Any,
        finishing: Finishing,
        collate: CollateFn | None,
        kept_bytes: int,
        init: Callable[[int], Any] | None = None,
        dataset: Any = None,
    ) -> None:
        self.is_kept = self.is_busy = self._is_closed = False
        self._owner = os.getpid()
        self._memory = SharedMemory(kept_bytes)
        self.memory = self._memory
        context = context_for(method)
        self._all: list[_Worker] = []
        gone = _Gone(self._memory.segments)
        try:
            for number in range(count):
                work = child.Work(finishing, collate, init, number, count, dataset)
                self._all.append(_Worker(context, work, gone))
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, number: int) -> Finisher:
        return self._all[number]

    @property
    def pids(self) -> list[int]:
        """Ids of the processes."""
        return [worker.process.pid or 0 for worker in self._all]

    @property
    def is_broken(self) -> bool:
        """Whether one of the processes has ended, or is about to."""
        return self._is_closed or any(worker.is_lost or not worker.process.is_alive() for worker in self._all)

    def stop(self) -> None:
        """End all processes, even in the middle of a sample, unless they are kept."""
        if not self.is_kept:
            self._hang_up()

    def _hang_up(self) -> None:
        # Not in a process that was forked since: the workers do not belong to it.
        if os.getpid() == self._owner and not self._is_closed:
            for worker in self._all:
                worker.hang_up()

    def close(self, wait: bool = True) -> None:
        """End all processes and release their memory."""
        if os.getpid() != self._owner or self._is_closed:  # when Python ends, an epoch may be closed after its loader
            return
        self._hang_up()
        self._is_closed = True
        if wait:
            for worker in self._all:
                worker.join()
        self._memory.segments.close()


class _Gone:
    """Tells every worker which segments are not needed any more."""

    def __init__(self, segments: Segments) -> None:
        self.segments = segments
        self._news: list[deque[int]] = []

    def subscribe(self) -> deque[int]:
        """Return a queue that tells one worker the numbers of segments no longer needed."""
        self._news.append(deque())
        return self._news[-1]

    def take(self, mine: deque[int]) -> tuple[int, ...]:
        """Return the segments that one worker has not been told about yet."""
        for number in self.segments.take_gone():
            for news in self._news:
                news.append(number)
        return tuple(mine.popleft() for _ in range(len(mine)))


class _Worker(Finisher):
    def __init__(self, context: BaseContext, work: child.Work, gone: _Gone) -> None:
        self._finishing = work.finishing
        self._collate = work.collate
        self._gone = gone
        self._news = gone.subscribe()
        self._turn = threading.Lock()  # held from choosing a message until it is answered
        self._lock = threading.Lock()  # held while a thread talks to the worker
        self._is_over = False
        self._known: set[int] = set()  # segments that the worker has mapped
        self._is_ready = False
        self.is_lost = False
        self._line, there = Line.pair()
        self.process: multiprocessing.process.BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=child.run, args=(there, work), name="sophon-worker", daemon=True
        )
        try:
            self.process.start()
        except CannotPickle as error:
            self._line.close()
            raise ConfigError(
                f"one of your own steps cannot be sent to a spawned worker process: {error}. Define it at the top "
                "level of a module, not as a lambda or inside a function; or use num_workers=0"
            ) from error
        finally:
            there.close()

    def make(self, reply: Reply, key: Key, place: Place | None, wants_trace: bool) -> Made:
        """Let the worker finish a sample."""
        if reply.error is not None:
            return self._finishing.make(reply, key)
        try:
            payload, columns = self._finishing.taken_apart(reply)
        except PayloadError as error:
            return Made(key, error=error)
        with self._turn:
            spot, file = self._spot(place)
            needed = columns if self._finishing.targets is not None else {}
            message = Finish(key, reply.cut, reply.label, spot, wants_trace, self._forgotten(), needed)
            told, body, new = self._ask(message, payload, file, f"finished sample {key.sample}")
        assert isinstance(told, Finished)
        made = Made(key, columns=columns, trace=told.trace, cpu_s=told.cpu_s, size_bytes=told.size_bytes)
        if told.failure is not None:
            made.error = told.failure.to_error()
            return made
        try:
            made.value, made.target = unpacked(told.rest, body, new).open()
        except Exception as error:  # noqa: BLE001 - the user's own class may raise anything
            error.add_note(f"the result for sample {key.sample} cannot be unpickled as a worker process sent it")
            made.error = error
            return made
        made.is_placed, made.layout = told.is_placed, told.layout
        return made

    def batch(self, batch: Batch, key: Key) -> Any:
        """Let the worker make a batch with the user's own function, or make it here if there is none."""
        if self._collate is None or not batch.kept:
            if batch.segment is not None:
                self._gone.segments.handed_out(batch.segment)
            return batch.assembled()
        with self._turn:
            spots: list[Spot | None] = []
            rest, file = [], None
            for made, place in batch.rows():
                spot, new = self._spot(place)
                file = file if new is None else new  # all places of a batch lie in one segment
                spots.append(spot)
                rest.append((made.value if spot is None else None, made.target, made.columns))
            parcel, memory = packed_inline(rest)
            message = Collate(key, tuple(spots), parcel, self._forgotten())
            told, body, came = self._ask(message, memory, file, f"made the batch at position {key.sample}")
        assert isinstance(told, Collated)
        if told.failure is not None:
            raise told.failure.to_error()
        return unpacked(told.rest, body, came).open()

    def _spot(self, place: Place | None) -> tuple[Spot | None, int | None]:
        """Return the place's spot in shared memory, if it has one, and the file if the worker has yet to map it."""
        if place is None or place.segment is None:
            return None, None
        segment: Segment = place.segment
        spot = Spot(segment.number, segment.size_bytes, place.offset, (place.array.shape, place.array.dtype.str))
        if segment.number in self._known:
            return spot, None
        self._known.add(segment.number)
        return spot, segment.file

    def _forgotten(self) -> tuple[int, ...]:
        gone = self._gone.take(self._news)
        self._known.difference_update(gone)
        return gone

    def _ask(self, message: Any, body: Any, file: int | None, what: str) -> tuple[Any, bytearray, int | None]:
        with self._lock:
            try:
                if self._is_over:
                    raise LineClosedError
                if not self._is_ready:
                    self._wait_until_ready()
                send(self._line, message, body, file)
                return receive(self._line)
            except LineClosedError:
                self.is_lost = True
                if self._is_over:
                    self._line.close()
                raise self._death(what) from None
            except BaseException:  # Ctrl-C, say: a late answer would be taken for the answer to the next message
                self.is_lost = True
                self.process.kill()
                raise

    def _wait_until_ready(self) -> None:
        self._line.set_timeout(_START_S)
        try:
            told, _, _ = receive(self._line)
        except TimeoutError:
            raise WorkerError(
                f"a worker process did not start within {_START_S:g} s; is a module that it imports waiting for "
                "something?"
            ) from None
        if told.failure is not None:
            raise told.failure.to_error()
        self._line.set_timeout(None)
        self._is_ready = True

    def _death(self, what: str) -> WorkerError:
        self.process.join(_END_S)
        code = self.process.exitcode
        how, remedy = _in_words(code)
        return WorkerError(f"a worker process {how} while it {what} of {self._finishing.url}. {remedy}")

    def hang_up(self) -> None:
        """Make the process end, whatever it is doing."""
        self._is_over = True
        self._line.wake()
        if self._lock.acquire(blocking=False):
            try:
                self._line.close()
            finally:
                self._lock.release()
        else:  # a thread that talks to it finds the line closed and lets go
            self.process.terminate()

    def join(self) -> None:
        """Wait until the process has ended."""
        self.process.join(_END_S)
        if self.process.is_alive():  # busy, or stuck in the user's own code
            self.process.terminate()
            self.process.join(_END_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self._line.close()
        with contextlib.suppress(ValueError):  # other threads that waited for it have to notice its end first
            self.process.close()  # otherwise its two files stay open until the garbage collector runs


def context_for(method: Any) -> BaseContext:
    """Return how processes are started.

    Args:
        method: Start method as given by the user: a name, a context of `multiprocessing`, or None for "fork" if
            available.
    """
    if multiprocessing.current_process().daemon:
        raise ConfigError(
            "num_workers: this is itself a worker process, for example of torch's DataLoader, and cannot start "
            "others; use num_workers=0 here"
        )
    methods = multiprocessing.get_all_start_methods()
    if method is None:
        return multiprocessing.get_context("fork" if "fork" in methods else "spawn")
    if isinstance(method, str):
        if method not in methods:
            raise ConfigError(f"multiprocessing_context: expected one of {', '.join(methods)}, got {method!r}")
        return multiprocessing.get_context(method)
    if not isinstance(method, BaseContext):
        raise ConfigError(f"multiprocessing_context: expected a name or a context of multiprocessing, got {method!r}")
    return method


def _in_words(code: int | None) -> tuple[str, str]:
    """Return how a process ended, and what to try."""
    if code is None:
        return "hung up", "Your own code closed files that it had not opened; num_workers=0 shows where."
    if code >= 0:
        return f"exited with code {code}", "Your own code ended it; num_workers=0 shows where."
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if name == "SIGKILL":
        remedy = "The system kills processes that use too much memory: use fewer workers, or a smaller buffer_bytes."
    else:
        remedy = "Native code that your own steps or the decoder use may have crashed; num_workers=0 shows where."
    return f"was ended by {name}", remedy
