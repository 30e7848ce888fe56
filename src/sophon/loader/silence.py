"""Ends connections on which nothing comes any more: a host that lost power, a process that hangs, a cut link.

Nobody tells a trainer of those, and a call that waits would wait for its whole deadline. A node says something on every
open stream at least once a second (`server.service`), so a connection on which a call waits and no byte has come for
longer than that is dead. The kernel knows when the last byte came; a byte of anything counts, so one large sample on a
slow link is never taken for silence.

Why not gRPC's keepalive: in gRPC 1.81 (pyarrow 26) its timeout is never started, and its ping timeout wants the answer
to a ping, which waits behind the samples that are being sent: on a link of 1 Mbit/s it ends connections that are well.
It is also answered with "too many pings" by a node that has nothing to send.

Concurrency: a thread while calls are under way. It stays for a moment when there are none, since to start one for every
single sample would double what a request takes; `rest` ends it, for those who close a connection or fork, and it ends
with the watch: it holds no reference to it while it waits.
Limits: the kernel is asked the Linux way; elsewhere, and behind a proxy, a call ends at its deadline.
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
_LOOKS = 10  # in the time that counts as silence


class Call(Protocol):
    """Something that waits for words from a node.

    Attributes:
        waiting_since_s: For the next word, by the monotonic clock; None while it has one to work on.
        heard_s: Set to when the last byte came, whatever it belongs to.
        fell_silent: Set when its connection is ended for its silence.
    """

    waiting_since_s: float | None
    heard_s: float
    fell_silent: bool


class SilenceWatch:
    """Watches over the calls to one node.

    Args:
        host: Of the node.
        port: Of the node.
        silence_s: How long nothing may come.
    """

    def __init__(self, host: str, port: int, silence_s: float) -> None:
        self._host = host
        self._port = port
        self._silence_s = silence_s
        # Reentrant: a fetch left half-way is closed by the garbage collector, maybe while its thread holds this.
        self._lock = threading.RLock()
        self._calls: set[Call] = set()
        self._was_used = False  # since the last look
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._at_end: weakref.finalize[..., SilenceWatch] | None = None
        self._addresses: frozenset[str] = frozenset()

    def add(self, call: Call) -> None:
        """Watch over one more call."""
        with self._lock:
            self._calls.add(call)
            self._was_used = True
            if self._thread is None:
                self._over = threading.Event()
                told = (weakref.ref(self), self._over, self._silence_s / _LOOKS)
                thread = threading.Thread(target=_run, args=told, name="sophon-watch", daemon=True)
                thread.start()
                self._thread = thread  # one that could not be started watches over nothing
                if self._at_end is not None:
                    self._at_end.detach()  # that of a thread that has ended
                self._at_end = weakref.finalize(self, _end, self._over, self._thread)
                self._at_end.atexit = False

    def remove(self, call: Call) -> None:
        """Leave a call alone."""
        with self._lock:
            self._calls.discard(call)

    def rest(self) -> None:
        """End the thread now, unless there are calls."""
        with self._lock:
            if self._calls or self._thread is None:
                return
            thread, self._thread = self._thread, None
            self._over.set()
        thread.join(1.0)  # it may ask for the node's addresses just now

    def prepare(self) -> None:
        """Find the node's addresses; with the first call, while all is well: without a network nobody would know."""
        self._addresses |= _addresses_of(self._host)  # a node may have moved; what is known may still be right

    def goes_on(self, over: threading.Event) -> bool:
        """Look at the calls; return False if there have been none for a while."""
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


def _end(over: threading.Event, thread: threading.Thread) -> None:
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
    """Yield this process's connections to a node, whoever made them, and for how long nothing came on each."""
    if not hasattr(socket, "TCP_INFO") or not _OPEN_FILES.is_dir():
        return
    for name in os.listdir(_OPEN_FILES):  # noqa: PTH208 - names, and as few calls as can be
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
            continue  # it was closed while we looked


def _peer(connection: socket.socket) -> tuple[str, int] | None:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    address, port = connection.getpeername()[:2]
    return str(address).removeprefix("::ffff:"), int(port)  # gRPC reaches IPv4 addresses through IPv6 sockets
