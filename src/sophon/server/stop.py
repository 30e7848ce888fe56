"""The wish that a server stop, heard whichever thread the kernel tells it to.

A signal to a process is taken by the first of its threads that is about to leave the kernel and does not block it; one
that was just started is such a thread as well as any. Python runs the handler in the main thread, but nothing wakes the
main thread up for it if it waits for a lock: on a busy node, as requests come in and gRPC starts threads, a SIGTERM
would be lost. So the main thread waits for a byte instead, which the handler beneath Python writes from any thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from types import FrameType, TracebackType


class StopSignals:
    """SIGTERM and SIGINT, in a ``with`` block of the main thread; the second of them ends the process at once."""

    def __init__(self) -> None:
        self._count = 0

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

    def _on(self, _: int, __: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            os._exit(1)

    def wait(self) -> None:
        """Return when the first signal has come."""
        while not self._count:
            self._byte.recv(64)

    def listen(self, timeout_s: float) -> None:
        """Spend some time, in which a further signal is heard."""
        self._byte.settimeout(timeout_s)
        with contextlib.suppress(TimeoutError):
            self._byte.recv(64)
