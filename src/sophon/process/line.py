"""A line between two processes of ours: messages of a head and a body, and open files along with them.

Concurrency: one thread at a time at each end.
Limits: Unix sockets, since open files travel through them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import weakref
from collections.abc import Sequence
from typing import Any

_LENGTHS = struct.Struct("<IQB")  # of the head, of the body, number of files
_MOST_FILES = 4
_BUFFER_BYTES = 1 << 20  # of the kernel's, if it lets us: a payload goes out in one piece and nobody waits for it


class LineClosedError(Exception):
    """The other end is gone."""


class Line:
    """One end of a line between two processes.

    Args:
        end: The socket.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        _OPEN.add(self)

    @classmethod
    def pair(cls) -> tuple[Line, Line]:
        """Return both ends of a new line."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(here), cls(there)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Line, (self._end,))  # to a process that is being spawned

    def send(self, head: bytes, body: Any = b"", files: Sequence[int] = ()) -> None:
        """Send a message.

        Args:
            head: What it says.
            body: Bytes that go along, as any buffer.
            files: Descriptors that the other end gets copies of.

        Raises:
            LineClosedError: The other end is gone.
        """
        rest = memoryview(body).cast("B") if len(body) else memoryview(b"")
        first = _LENGTHS.pack(len(head), len(rest), len(files)) + head
        try:
            sent = socket.send_fds(self._end, [first, rest], list(files))
            if sent < len(first):
                self._end.sendall(memoryview(first)[sent:])
                sent = len(first)
            if sent < len(first) + len(rest):
                self._end.sendall(rest[sent - len(first) :])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise LineClosedError from error

    def receive(self) -> tuple[bytes, bytearray, list[int]]:
        """Wait for a message and return it.

        Raises:
            LineClosedError: The other end is gone.
            OSError: This process has so many files open that those of the message cannot be.
        """
        files: list[int] = []
        try:
            start, files, _, _ = socket.recv_fds(self._end, _LENGTHS.size, _MOST_FILES)
            start += self._exactly(_LENGTHS.size - len(start)) if start else b""
            if not start:
                raise LineClosedError
            head_bytes, body_bytes, count = _LENGTHS.unpack(start)
            if len(files) != count:  # the kernel leaves them out without a word
                raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)}; see ulimit -n")
            return bytes(self._exactly(head_bytes)), self._exactly(body_bytes), files
        except BaseException as error:
            for file in files:
                os.close(file)
            if isinstance(error, ConnectionResetError):
                raise LineClosedError from error
            raise

    def _exactly(self, count: int) -> bytearray:
        found = bytearray(count)
        view, got = memoryview(found), 0
        while got < count:
            more = self._end.recv_into(view[got:])
            if more == 0:
                raise LineClosedError
            got += more
        return found

    def set_timeout(self, seconds: float | None) -> None:
        """Have `receive` raise TimeoutError if nothing comes for so long."""
        self._end.settimeout(seconds)

    def close(self) -> None:
        """Hang up; whoever waits at the other end finds out."""
        _OPEN.discard(self)
        self._end.close()

    def __del__(self) -> None:
        self._end.close()  # in a thread that is not waited for, the last one who talked through it lets go of it

    def wake(self) -> None:
        """Make whoever waits at this end, in another thread, find the line closed."""
        with contextlib.suppress(OSError):  # the other end was faster
            self._end.shutdown(socket.SHUT_RDWR)


_OPEN: weakref.WeakSet[Line] = weakref.WeakSet()


def close_others(mine: Line) -> None:
    """Close all ends but one, in a process that was forked: an end is only closed once nobody holds a copy of it."""
    for line in list(_OPEN):
        if line is not mine:
            line.close()
