"""Ends connections on which nothing arrives any more: a host that lost power, a process that hangs, a cut link.

A trainer is not notified of such failures, and a call would wait until its deadline. A node sends something on every
open stream at least once a second (`server.service`), so if a call waits and no byte has arrived for much longer than
that, the connection is dead. The kernel knows when the last byte came. Any byte counts, so one large sample on a slow
link is never mistaken for silence.

Why not gRPC's keepalive: in gRPC 1.81 (pyarrow 26) its timeout is never started. Its ping timeout waits for the answer
to a ping, which queues behind the samples that are being sent, so on a link of 1 Mbit/s it ends healthy connections. A
node that has nothing to send also rejects pings with "too many pings".

Concurrency: one thread runs while there are calls. The thread stays for a moment after the last call, since starting a
thread for every single sample would double the time of a request. `rest` ends the thread, for callers that close a
connection or fork. The thread also ends with the watch, since it holds no reference to the watch while it waits.
Limits: the query to the kernel works only on Linux; elsewhere, and behind a proxy, a call ends at its deadline.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

_OPEN_FILES = Path("/proc/self/fd")
_ESTABLISHED = 1
_TCP_INFO_BYTES = 104
_LAST_RECEIVED = struct.Struct("=52xI")  # struct tcp_info: eight bytes, eleven words, then tcpi_last_data_recv, in ms
_LOOKS = 10  # checks during the time that counts as silence


class Call(Protocol):
    """A call that waits for messages from a node.

    Attributes:
        waiting_since_s: Since when it has waited for the next message, by the monotonic clock; None while it is
            processing one.
        heard_s: Set to the time of the last byte, whatever it belongs to.
        fell_silent: Set when the connection is ended because of its silence.
    """

    waiting_since_s: float | None
    heard_s: float
    fell_silent: bool


class SilenceWatch:
    """Watches the calls to one node.

    Args:
        host: Host of the node.
        port: Port of the node.
        silence_s: How long the node may send nothing.
    """

    def __init__(self, host: str, port: int, silence_s: float) -> None:
        self._host = host
        self._port = port
        self._silence_s = silence_s
        # Reentrant: the garbage collector may close an abandoned fetch in a thread that holds this lock.
        self._lock = threading.RLock()
        self._calls: set[Call] = set()
        self._was_used = False  # whether there was a call since the last check
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._at_end: weakref.finalize[..., SilenceWatch] | None = None
        self._addresses: frozenset[str] = frozenset()

    def add(self, call: Call) -> None:
        """Watch one more call."""
        with self._lock:
            self._calls.add(call)
            self._was_used = True
            if self._thread is None:
                self._over = threading.Event()
                told = (weakref.ref(self), self._over, self._silence_s / _LOOKS)
                thread = threading.Thread(target=_run, args=told, name="sophon-watch", daemon=True)
                thread.start()
                self._thread = thread  # only once it has really started
                if self._at_end is not None:
                    self._at_end.detach()  # the finalizer of a thread that has ended
                self._at_end = weakref.finalize(self, _end, os.getpid(), self._over, self._thread)
                self._at_end.atexit = False

    def remove(self, call: Call) -> None:
        """Stop watching a call."""
        with self._lock:
            self._calls.discard(call)

    def rest(self) -> None:
        """End the thread now, unless there are calls to watch."""
        with self._lock:
            if self._calls or self._thread is None:
                return
            thread, self._thread = self._thread, None
            self._over.set()
        thread.join(1.0)  # it may be looking up the node's addresses

    def prepare(self) -> None:
        """Look up the node's addresses with the first call, since that may be impossible once the network is down."""
        self._addresses |= _addresses_of(self._host)  # a node may move; old addresses may still be right

    def goes_on(self, over: threading.Event) -> bool:
        """Check the calls; return False if there have been none for a while."""
        with self._lock:
            if not self._was_used and not over.is_set():
                self._thread = None
                return False
            self._was_used = bool(self._calls)
        self._look(time.monotonic())
        return True

    def _look(self, now_s: float) -> None:
        with self._lock:
            waiting = [call for call in list(self._calls) if _waited_s(call, now_s) >= self._silence_s / _LOOKS]
        if not waiting:
            return
        for connection, last_s in _connections(self._addresses, self._port):
            for call in waiting:
                call.heard_s = max(call.heard_s, now_s - last_s)
            silent = [call for call in waiting if _waited_s(call, now_s) >= self._silence_s]
            if silent and last_s >= self._silence_s:
                for call in silent:
                    call.fell_silent = True
                # gRPC sees the same as when the other side hangs up, and fails whatever waits for it.
                connection.shutdown(socket.SHUT_RDWR)


def _run(held: weakref.ref[SilenceWatch], over: threading.Event, pause_s: float) -> None:
    watch = held()
    if watch is not None:
        watch.prepare()
    while True:
        watch = None
        if over.wait(pause_s):
            return
        watch = held()
        if watch is None or not watch.goes_on(over):
            return


def _end(pid: int, over: threading.Event, thread: threading.Thread) -> None:
    if pid != os.getpid():
        return  # in a forked child the thread does not exist, and may have held the event's lock
    over.set()
    if thread is not threading.current_thread():
        thread.join(1.0)


def _waited_s(call: Call, now_s: float) -> float:
    since_s = call.waiting_since_s
    return 0.0 if since_s is None else now_s - since_s


def _addresses_of(host: str) -> frozenset[str]:
    try:
        return frozenset(str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except OSError:
        return frozenset()


def _connections(addresses: frozenset[str], port: int) -> Iterator[tuple[socket.socket, float]]:
    """Yield all of this process's connections to a node, and how long each has been silent."""
    if not hasattr(socket, "TCP_INFO") or not _OPEN_FILES.is_dir():
        return
    for name in os.listdir(_OPEN_FILES):  # noqa: PTH208 - only names, with as few system calls as possible
        try:
            if not (_OPEN_FILES / name).readlink().name.startswith("socket:"):
                continue
            # A copy of the descriptor: the original is gRPC's, which may close it at any moment.
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.type == socket.SOCK_STREAM and _peer(connection) in {(a, port) for a in addresses}:
                    state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                    if state[0] == _ESTABLISHED:
                        yield connection, _LAST_RECEIVED.unpack_from(state)[0] / 1000
        except OSError:
            continue  # closed while we looked


def _peer(connection: socket.socket) -> tuple[str, int] | None:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    address, port = connection.getpeername()[:2]
    return str(address).removeprefix("::ffff:"), int(port)  # gRPC reaches IPv4 addresses through IPv6 sockets
