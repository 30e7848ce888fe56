"""Makes stop signals reach the server, whichever thread the kernel delivers them to.

The kernel delivers a signal to any thread of the process that does not block it, even one that has just been started.
Python runs the handler in the main thread, but nothing wakes the main thread while it waits for a lock: on a busy node,
where gRPC starts threads as requests come in, a SIGTERM would be lost. So the main thread waits for a byte instead,
which Python's C-level handler writes in whichever thread receives the signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from types import FrameType, TracebackType


class StopSignals:
    """Waits for SIGTERM or SIGINT in a ``with`` block of the main thread; a second one ends the process at once."""

    def __init__(self) -> None:
        self._count = 0
        self._first = 0

    def __enter__(self) -> StopSignals:
        self._byte, writer = socket.socketpair()
        self._writer = writer
        writer.setblocking(False)
        self._wakeup_before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._on) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._byte.close()
        self._writer.close()

    @property
    def is_interrupt(self) -> bool:
        """Whether the first signal was Ctrl-C."""
        return self._first == signal.SIGINT

    def _on(self, number: int, _: FrameType | None) -> None:
        self._first = self._first or number
        self._count += 1
        if self._count > 1:
            os._exit(128 + number if number == signal.SIGINT else 1)

    def wait(self) -> None:
        """Wait for the first signal."""
        while not self._count:
            self._byte.recv(64)

    def listen(self, timeout_s: float) -> None:
        """Wait up to a number of seconds; a further signal still ends the process."""
        self._byte.settimeout(timeout_s)
        with contextlib.suppress(TimeoutError):
            self._byte.recv(64)
