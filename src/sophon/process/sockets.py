"""This process's sockets, also those that libraries opened, and what the kernel knows about TCP connections.

gRPC shows neither its connections nor what arrives on them before a message is complete.

Limits: Linux only; elsewhere there are no sockets to be seen.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
import struct
from array import array
from collections.abc import Collection, Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sophon.process.alarm import Alarm

if TYPE_CHECKING:
    from sophon.process import _traffic as kernel
else:
    try:
        from sophon.process import _traffic as kernel
    except ImportError:  # built without a compiler, or not on Linux
        kernel = None

Peer = tuple[str, int]

_OPEN_FILES = "/proc/self/fd"
_MOST_NUMBERS = 1 << 16  # of descriptors that are tried one by one
_ESTABLISHED = 1
# struct tcp_info: tcpi_state, tcpi_last_data_recv in ms, tcpi_bytes_acked and tcpi_bytes_received
_TCP_INFO = struct.Struct("=B51xI64xQQ")


class Traffic(NamedTuple):
    """What went over a connection.

    Args:
        is_established: Whether both sides still take part.
        silent_s: How long ago the last byte arrived.
        sent_bytes: Bytes that the other side has acknowledged.
        received_bytes: Bytes that have arrived, read or not.
    """

    is_established: bool
    silent_s: float
    sent_bytes: int
    received_bytes: int


def are_visible() -> bool:
    """Return whether sockets can be seen here."""
    return hasattr(socket, "TCP_INFO") and Path(_OPEN_FILES).is_dir()


def open_files() -> int:
    """Return how many files this process has open, in one system call; 0 if the kernel is too old to say (6.2)."""
    return os.stat(_OPEN_FILES).st_size  # noqa: PTH116 - often, and a path of pathlib takes longer than the call


def sockets(settled: Container[int], still: list[int]) -> Iterator[tuple[int, int, socket.socket]]:
    """Yield the descriptor, the inode and a copy of each of this process's sockets.

    Settled sockets are skipped, but recorded if they still exist. Each costs only one system call, since this runs
    as long as a node does.
    """
    for number in _numbers():
        try:
            found = os.fstat(number)
            if found.st_ino in settled and stat.S_ISSOCK(found.st_mode):
                still.append(found.st_ino)
            elif stat.S_ISSOCK(found.st_mode):
                with copy_of(number) as copy:
                    yield number, os.fstat(copy.fileno()).st_ino, copy
        except OSError:
            continue  # closed while we looked


class Borrowed:
    """A library's connection, looked at again and again without a copy, and never closed by us.

    Args:
        number: Its descriptor.
        inode: Its inode, which tells whether the descriptor is in use for something else by now.
    """

    def __init__(self, number: int, inode: int) -> None:
        self.number = number
        self.inode = inode
        self._socket = socket.socket(fileno=number)

    def __del__(self) -> None:
        self._socket.detach()

    def traffic(self) -> Traffic | None:
        """Return what went over it so far; None once it is closed."""
        try:
            return traffic_of(self._socket) if os.fstat(self.number).st_ino == self.inode else None
        except OSError:
            return None


def wait_for_change(
    alarm: Alarm, connections: Collection[Borrowed], enough_bytes: int, files: int, *, each_s: float, most_s: float
) -> None:
    """Wait for an alarm, for one of some connections to end or all to have received much, or for a file to be opened.

    It may return early.

    Args:
        alarm: Ends the wait at once.
        connections: The connections.
        enough_bytes: Bytes that all of them together have received since they began.
        files: How many files this process has open, by `open_files`.
        each_s: How often to look.
        most_s: How long to wait at most.
    """
    if kernel is None:
        alarm.wait(each_s)
        return
    numbers = array("q", [one.number for one in connections])
    inodes = array("Q", [one.inode for one in connections])
    kernel.wait(alarm.fileno(), numbers, inodes, enough_bytes, files, each_s, most_s)


@contextmanager
def copy_of(number: int) -> Iterator[socket.socket]:
    """Copy a socket, which is gRPC's and may be closed by it at any moment; use the original if no copy is possible."""
    try:
        copy, is_borrowed = socket.socket(fileno=os.dup(number)), False
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        copy, is_borrowed = socket.socket(fileno=number), True
    try:
        yield copy
    finally:
        if is_borrowed:
            copy.detach()
        else:
            copy.close()


def peer_of(connection: socket.socket) -> Peer | None:
    """Return address and port of the other side of a TCP connection; None for any other socket."""
    if connection.type != socket.SOCK_STREAM or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    address, port = connection.getpeername()[:2]
    return str(address).removeprefix("::ffff:"), int(port)  # gRPC reaches IPv4 addresses through IPv6 sockets


def traffic_of(connection: socket.socket) -> Traffic:
    """Return what went over a TCP connection; an old kernel counts no bytes."""
    state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    state_number, silent_ms, sent, received = _TCP_INFO.unpack(state.ljust(_TCP_INFO.size, b"\0"))
    return Traffic(state_number == _ESTABLISHED, silent_ms / 1000, sent, received)


def _numbers() -> Iterable[int]:
    """Return the numbers of this process's open files; if it takes one more to list them, those that it may have."""
    try:
        return map(int, os.listdir(_OPEN_FILES))  # noqa: PTH208 - only names, with as few system calls as possible
    except OSError:
        return range(min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _MOST_NUMBERS))
