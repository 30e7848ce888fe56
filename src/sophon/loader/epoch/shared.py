"""One epoch for several consumers in one process, such as one thread per accelerator.

Concurrency: any number of threads may draw from an epoch. One at a time waits for the next batch and takes it, and the
others queue behind that one; a thread that works on its batch does not block the others. `close` may be called from any
thread and wakes those that wait.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Any

_NAP_S = (
    0.5  # between two checks for signals: a signal taken by another thread does not wake a thread that waits for a lock
)


class Latest:
    """The state of the latest pass."""

    def __init__(self) -> None:
        self.is_started = False
        self._batches: Callable[[], object] | None = None

    def of(self, batches: Generator[Any]) -> None:
        """Record which pass is the latest, without keeping it alive."""
        self._batches = weakref.ref(batches)

    @property
    def was_dropped(self) -> bool:
        """Whether the latest pass was dropped before its first batch was requested."""
        return not self.is_started and self._batches is not None and self._batches() is None


class Running:
    """The engines that must be stopped to end a pass."""

    def __init__(self) -> None:
        self._engines: list[Any] = []
        self._is_over = False

    def add(self, engine: Any) -> None:
        """Add an engine; if the pass was already stopped, stop the engine immediately."""
        self._engines.append(engine)
        if self._is_over:
            engine.close()

    def stop(self) -> None:
        """Raise an error in every thread that waits for a batch."""
        self._is_over = True
        for engine in list(self._engines):
            engine.close()


class SharedBatches(Iterator[Any]):
    """The batches of one epoch; each goes to exactly one of the threads that iterate over this object.

    A loader error ends the epoch for all of them: every later request gets the same error. An error in one
    consumer's own code does not affect the others: they get the remaining batches.

    Args:
        batches: Source of the batches.
        stop: Called from another thread; makes an iteration that waits for a batch raise an error.
    """

    def __init__(self, batches: Generator[Any], stop: Callable[[], None]) -> None:
        self._batches = batches
        self._stop = stop
        self._lock = threading.Lock()
        self._is_closed = False
        self._error: BaseException | None = None

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait in line; Ctrl-C is noticed in the meantime, whichever thread the signal reaches."""
        while not self._lock.acquire(timeout=_NAP_S):
            pass
        try:
            yield
        finally:
            self._lock.release()

    def __next__(self) -> Any:
        with self._turn():
            if self._error is not None:
                raise self._error
            try:
                batch = next(self._batches)
            except StopIteration:
                raise
            except BaseException as error:
                if self._is_closed:
                    raise StopIteration from None
                self._error = error
                raise
            if self._is_closed:  # closed while the batch was being made
                raise StopIteration
            return batch

    def close(self) -> None:
        """End the epoch early: threads that wait for a batch, or ask for one later, see the end of the epoch.

        With worker processes this takes until the batch that a thread waits for has arrived.
        """
        self._is_closed = True
        self._stop()
        with self._turn():
            self._batches.close()

    def __enter__(self) -> SharedBatches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
