"""A line between two of our processes; a message has a head, a body and any number of open files.

Concurrency: one thread at a time at each end. Limits: Unix sockets only, since open files are sent through them.
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

_LENGTHS = struct.Struct("<IQB")  # length of the head, length of the body, number of files
_MOST_FILES = 4
_BUFFER_BYTES = 1 << 20  # kernel buffer, if allowed: a payload then goes out in one piece and the sender does not wait


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
        return (Line, (self._end,))  # for a process that is being spawned

    def send(self, head: bytes, body: Any = b"", files: Sequence[int] = ()) -> None:
        """Send a message.

        Args:
            head: The message.
            body: Bytes sent along, as any buffer.
            files: Descriptors that are copied to the other end.

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
            OSError: This process has too many open files to receive the message's files.
        """
        files: list[int] = []
        try:
            start, files, _, _ = socket.recv_fds(self._end, _LENGTHS.size, _MOST_FILES)
            start += self._exactly(_LENGTHS.size - len(start)) if start else b""
            if not start:
                raise LineClosedError
            head_bytes, body_bytes, count = _LENGTHS.unpack(start)
            if len(files) != count:  # the kernel drops them silently
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
        """Make `receive` raise TimeoutError if nothing arrives for this long."""
        self._end.settimeout(seconds)

    def close(self) -> None:
        """Close the line; a receiver waiting at the other end is notified."""
        _OPEN.discard(self)
        self._end.close()

    def __del__(self) -> None:
        self._end.close()  # a thread that nobody joins may be the last user of the line

    def wake(self) -> None:
        """Wake a thread that waits at this end; it finds the line closed."""
        with contextlib.suppress(OSError):  # the other end closed it first
            self._end.shutdown(socket.SHUT_RDWR)


_OPEN: weakref.WeakSet[Line] = weakref.WeakSet()


def close_others(mine: Line) -> None:
    """Close all ends but one in a forked process: an end is closed only once no process holds a copy of it."""
    for line in list(_OPEN):
        if line is not mine:
            line.close()
