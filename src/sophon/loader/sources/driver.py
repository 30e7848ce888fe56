"""Drives a machine: sends what it asks for, and reports the outcome to it.

The same loop serves epochs, samples that are fetched by index, and the opening of a data set.

Concurrency: `fetch` may run in any number of threads; `inline` does everything in the iterating thread. Both call the
machine under `lock` and wait for the network without it.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from sophon.errors import Error, RetryableError
from sophon.link.transport import Fetch
from sophon.link.wire import Reply
from sophon.loader.machine.machine import Ask, Machine
from sophon.loader.machine.parts import Parts

_LONGEST_SLEEP_S = 0.05  # in a thread that cannot be woken: an event may come earlier than expected


class Errand(ABC):
    """What to fetch, and callbacks for its progress."""

    @abstractmethod
    def send(self, ask: Ask) -> Fetch:
        """Send a request."""

    def look(self, machine: Machine) -> None:  # noqa: B027
        """Tell the machine about changes to the samples to fetch, before it is asked."""

    def received(self, ask: Ask, reply: Reply, fetch: Fetch) -> None:  # noqa: B027 - not every errand keeps counts
        """Called when a wanted reply arrives."""

    def waited(self, seconds: float, cpu_s: float) -> None:  # noqa: B027
        """Called with the seconds, and CPU seconds, that a reply took."""

    def spent(self, ask: Ask, cpu_s: float) -> None:  # noqa: B027
        """Called with all CPU seconds that a separate thread spent on a request, when the request has ended."""

    def failed(self, ask: Ask, error: Error, since_s: float) -> None:  # noqa: B027
        """Called when a request fails before it is complete, with the time of its last reply."""

    def ended(self, ask: Ask, failed: bool) -> None:  # noqa: B027
        """Called when a request ends; one that failed was incomplete."""

    def moved(self) -> Parts | None:
        """Return the holders if they have changed since the last call; called before every request."""
        return None


class Driver:
    """Drives one machine.

    Args:
        machine: The machine that decides.
        errand: What to fetch.
        raise_fatal: Raises the error with which a machine gave up, worded for the caller.
    """

    def __init__(self, machine: Machine, errand: Errand, raise_fatal: Callable[[Error], None]) -> None:
        self.machine = machine
        self.is_stopped = False
        self._errand = errand
        self._raise_fatal = raise_fatal
        self.renew()

    def renew(self) -> None:
        """Start over in a forked child: threads and requests stayed with the parent, possibly with the lock held."""
        # Reentrant, since an abandoned iterator may be closed by the garbage collector in any thread, at any moment.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)  # the machine may have something to request or deliver
        self._fetches: dict[int, Fetch] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no request is running."""
        return not self._fetches

    def raise_if_over(self) -> None:
        """Raise if the machine has given up."""
        if self.machine.fatal is not None:
            self._raise_fatal(self.machine.fatal)

    def inline(self, is_done: Callable[[], bool]) -> Iterator[tuple[int, Reply]]:
        """Yield the replies for all positions in the iterating thread, until `is_done` or `stop`."""
        while not is_done() and not self.is_stopped:
            self._follow()
            self._errand.look(self.machine)
            ask = self.machine.ask(time.monotonic())
            self.raise_if_over()
            if ask is None:
                time.sleep(min(_LONGEST_SLEEP_S, self.machine.wait_s(time.monotonic())))
            else:
                yield from self._replies(ask)

    def fetch(
        self, is_done: Callable[[], bool], take: Callable[[int, Reply], None], asking: Callable[[], None]
    ) -> None:
        """Send requests and take replies in a separate thread, until `is_done` or the machine has given up.

        Args:
            is_done: Returns whether this thread should end.
            take: Called with a reply, with the lock held.
            asking: Called, with the lock held, before a request is sent, so that another thread can send the next one.
        """
        begun_s = time.thread_time()
        while (ask := self._next(is_done)) is not None:
            with self.lock:
                asking()
            for item in self._replies(ask):
                with self.lock:
                    take(*item)
            now_s = time.thread_time()
            self._errand.spent(ask, now_s - begun_s)
            begun_s = now_s

    def _next(self, is_done: Callable[[], bool]) -> Ask | None:
        """Wait for something to request."""
        with self.lock:
            while not is_done():
                for request, fetch in self._fetches.items():
                    self.machine.heard(request, fetch.heard_s)
                self._follow()
                self._errand.look(self.machine)
                ask = self.machine.ask(time.monotonic())
                if ask is not None:
                    return ask
                if self.machine.fatal:
                    self.changed.notify_all()
                    return None
                self.changed.wait(self.machine.wait_s(time.monotonic()))
        return None

    def _follow(self) -> None:
        """Tell the machine if parts were added, moved or lost."""
        parts = self._errand.moved()
        if parts is not None:
            self.machine.divide(parts, time.monotonic())

    def stop(self) -> None:
        """End all requests."""
        with self.lock:
            self.is_stopped = True
            self.changed.notify_all()
            fetches = list(self._fetches.values())
        for fetch in fetches:
            fetch.cancel()

    def _replies(self, ask: Ask) -> Iterator[tuple[int, Reply]]:
        """Yield the wanted replies to a request, and report the outcome to the machine."""
        errand, is_owed = self._errand, False
        before_s = time.monotonic()
        try:
            fetch = errand.send(ask)
            with self.lock:
                self._fetches[ask.request] = fetch
                if self.is_stopped:  # stopped just before the request could be cancelled
                    fetch.cancel()
            before_s, before_cpu_s = time.monotonic(), time.thread_time()
            for reply in fetch:
                now_s = time.monotonic()
                errand.waited(now_s - before_s, time.thread_time() - before_cpu_s)
                position = ask.positions[reply.position]
                with self.lock:
                    if self.is_stopped:  # ends requests that cannot be cancelled, such as file reads
                        return
                    is_wanted = self.machine.reply(ask.request, position, len(reply.payload), now_s)
                    surplus = [self._fetches[n] for n in self.machine.surplus() if n in self._fetches]
                for other in surplus:
                    other.cancel()
                if is_wanted:
                    errand.received(ask, reply, fetch)
                    yield position, reply
                before_s, before_cpu_s = time.monotonic(), time.thread_time()
            with self.lock:
                if not self.is_stopped:
                    self.machine.ended(ask.request, time.monotonic())
        except Error as error:
            with self.lock:
                is_owed = not self.is_stopped and self.machine.failed(ask.request, error, time.monotonic())
            if is_owed and isinstance(error, RetryableError):
                errand.failed(ask, error, before_s)
        finally:
            # Not under the lock: the garbage collector may close this epoch in a thread that holds the counts.
            errand.ended(ask, is_owed)
            with self.lock:
                self._fetches.pop(ask.request, None)
                self.changed.notify_all()
