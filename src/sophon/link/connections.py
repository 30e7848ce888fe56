"""Ends connections to nodes on which nothing arrives any more, or far more than a message may have.

**Nothing**: a host that lost power, a process that hangs, a cut link. A trainer is not notified of such failures, and a
call would wait until its deadline. A node sends something on every open stream at least once a second
(`server.service`), so if a call waits and no byte has arrived for much longer than that, the connection is dead. The
kernel knows when the last byte came. Any byte counts, so one large sample on a slow link is never mistaken for silence.

Why not gRPC's keepalive: in gRPC 1.81 (pyarrow 26) its timeout is never started. Its ping timeout waits for the answer
to a ping, which queues behind the samples that are being sent, so on a link of 1 Mbit/s it ends healthy connections. A
node that has nothing to send also rejects pings with "too many pings".

**Too much**: gRPC collects all of a message, up to 4 GiB, before it compares its length with the bound that it was
given. So the bytes that have arrived since the calls under way got their latest messages, which the kernel counts, are
compared with what the messages since then account for; the rest is still on its way.

Concurrency: one thread runs while there are calls. The thread stays for a moment after the last call, since starting a
thread for every single sample would double the time of a request. `rest` ends the thread, for callers that close a
connection or fork. The thread also ends with the watch, since it holds no reference to the watch while it waits.
Limits: the queries to the kernel work only on Linux; elsewhere, and behind a proxy, a call ends at its deadline.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sophon.process.sockets import Traffic, are_visible, peer_of, sockets, traffic_of

_LOOKS = 10  # checks during the time that counts as silence
_MOST_PER_S = 2e9  # bytes; so often is looked that no more than a message arrives in between
_SHORTEST_PAUSE_S = 0.01
_SLACK_BYTES = 16 << 20  # for what the connection's buffers hold, and headers
_EXTRA = 1.05  # of a message's bytes: frames of HTTP/2 and TLS
_EXTRA_BYTES = 4096  # of a message: a node at work sends many that are nearly empty


class Call:
    """A call that waits for messages from a node.

    Args:
        most_bytes: Size of the longest message that it may get.

    Attributes:
        waiting_since_s: Since when it has waited for the next message, by the monotonic clock; None while it is
            processing one, and for calls that end by themselves at a deadline.
        heard_s: Time of the last byte, whatever it belongs to.
        messages: How many it got.
        fell_silent: Set when the connection is ended because of its silence.
        got_too_much: Set when the connection is ended because a message is too long.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.waiting_since_s: float | None = None
        self.heard_s = 0.0
        self.messages = 0
        self.fell_silent = False
        self.got_too_much = False

    def waited_s(self, now_s: float) -> float:
        """Return how long it has waited."""
        since_s = self.waiting_since_s
        return 0.0 if since_s is None else now_s - since_s


class _Port:
    """What this process's calls to a port have got, on all connections: gRPC shares one between several clients."""

    def __init__(self) -> None:
        self.calls: set[Call] = set()
        self.taken_bytes = 0.0


@dataclass(frozen=True)
class _Mark:
    """A moment of a connection: what had arrived, what messages accounted for, and how many each call had got."""

    received_bytes: int
    taken_bytes: float
    messages: dict[Call, int]


_ports: dict[int, _Port] = {}
os.register_at_fork(after_in_child=_ports.clear)  # a child has calls and connections of its own


class ConnectionWatch:
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
        self._all = _ports.setdefault(port, _Port())
        self._was_used = False  # whether there was a call since the last check
        self._thread: _Thread | None = None
        self._at_end: weakref.finalize[..., ConnectionWatch] | None = None
        self._addresses: frozenset[str] = frozenset()
        self._others: set[int] = set()  # inodes of sockets that are no connections to the node
        self._marks: dict[int, _Mark] = {}  # by inode

    def add(self, call: Call) -> None:
        """Watch one more call."""
        with self._lock:
            self._calls.add(call)
            self._all.calls.add(call)
            self._was_used = True
            if self._thread is None:
                thread = _Thread(weakref.ref(self))
                thread.start()
                self._thread = thread  # only once it has really started
                if self._at_end is not None:
                    self._at_end.detach()  # the finalizer of a thread that has ended
                self._at_end = weakref.finalize(self, _end, os.getpid(), self._thread)
                self._at_end.atexit = False
            elif self._thread.pause_s > self._pause_s:
                self._thread.woken.set()  # it would look too late

    def got(self, call: Call, size_bytes: int) -> None:
        """Count a message that a call has got."""
        # A lost update between threads is worth one message, and forgotten soon.
        self._all.taken_bytes += _EXTRA * size_bytes + _EXTRA_BYTES
        call.messages += 1

    def remove(self, call: Call) -> None:
        """Stop watching a call."""
        with self._lock:
            self._calls.discard(call)
            self._all.calls.discard(call)

    def rest(self) -> None:
        """End the thread now, unless there are calls to watch."""
        with self._lock:
            if self._calls or self._thread is None:
                return
            thread, self._thread = self._thread, None
            thread.end()
        thread.join(1.0)  # it may be looking up the node's addresses

    # --- in the watching thread ---------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Look up the node's addresses with the first call, since that may be impossible once the network is down."""
        self._addresses |= _addresses_of(self._host)  # a node may move; old addresses may still be right

    def goes_on(self, thread: _Thread) -> bool:
        """Check the calls; return False if there have been none for a while."""
        with self._lock:
            if not self._was_used and not thread.is_over:
                self._thread = None
                return False
            self._was_used = bool(self._calls)
            calls = list(self._calls)
            thread.pause_s = self._pause_s
        if calls:
            self._look(calls, time.monotonic())
        return True

    @property
    def _pause_s(self) -> float:
        """How long to wait between two checks; the lock is held."""
        least_bytes = min((call.most_bytes for call in self._calls), default=1 << 62)
        return min(self._silence_s / _LOOKS, max(least_bytes / _MOST_PER_S, _SHORTEST_PAUSE_S))

    def _look(self, calls: Collection[Call], now_s: float) -> None:
        there = set()
        for inode, connection, traffic in self._connections():
            there.add(inode)
            if self._is_silent(calls, traffic, now_s) or self._is_too_much(calls, inode, traffic):
                # gRPC sees the same as when the other side hangs up, and fails whatever waits for it.
                connection.shutdown(socket.SHUT_RDWR)
        self._marks = {inode: mark for inode, mark in self._marks.items() if inode in there}

    def _is_silent(self, calls: Collection[Call], traffic: Traffic, now_s: float) -> bool:
        waiting = [call for call in calls if call.waited_s(now_s) >= self._silence_s / _LOOKS]
        for call in waiting:
            call.heard_s = max(call.heard_s, now_s - traffic.silent_s)
        silent = [call for call in waiting if call.waited_s(now_s) >= self._silence_s]
        if not silent or traffic.silent_s < self._silence_s:
            return False
        for call in silent:
            call.fell_silent = True
        return True

    def _is_too_much(self, calls: Collection[Call], inode: int, traffic: Traffic) -> bool:
        taken_bytes, messages = self._all.taken_bytes, {call: call.messages for call in calls}
        mark = self._marks.get(inode)
        if mark is None or all(messages.get(call) != count for call, count in mark.messages.items()):
            mark = self._marks[inode] = _Mark(traffic.received_bytes, taken_bytes, messages)
        under_way_bytes = (traffic.received_bytes - mark.received_bytes) - (taken_bytes - mark.taken_bytes)
        if under_way_bytes <= sum(call.most_bytes for call in self._all.calls.copy()) + _SLACK_BYTES:
            return False
        for call in calls:
            call.got_too_much = True
        return True

    def _connections(self) -> Iterator[tuple[int, socket.socket, Traffic]]:
        """Yield all of this process's connections to the node."""
        if not are_visible():
            return
        wanted, still = {(address, self._port) for address in self._addresses}, list[int]()
        for _, inode, connection in sockets(self._others, still):
            try:
                is_ours = peer_of(connection) in wanted
            except OSError:
                continue  # not connected yet, or not any more
            if not is_ours:
                still.append(inode)
            else:
                traffic = traffic_of(connection)
                if traffic.is_established:
                    yield inode, connection, traffic
        self._others = set(still)


class _Thread(threading.Thread):
    """Looks at a watch now and then, as long as it exists."""

    def __init__(self, held: weakref.ref[ConnectionWatch]) -> None:
        super().__init__(name="sophon-watch", daemon=True)
        self._held = held
        self.woken = threading.Event()
        self.is_over = False
        self.pause_s = 0.0

    def end(self) -> None:
        """End soon."""
        self.is_over = True
        self.woken.set()

    def run(self) -> None:
        watch = self._held()
        if watch is not None:
            watch.prepare()
        while not self.is_over:
            watch = self._held()
            if watch is None or not watch.goes_on(self):
                return
            watch = None
            if self.woken.wait(self.pause_s):
                self.woken.clear()


def _end(pid: int, thread: _Thread) -> None:
    if pid != os.getpid():
        return  # in a forked child the thread does not exist, and may have held the event's lock
    thread.end()
    if thread is not threading.current_thread():
        thread.join(1.0)


def _addresses_of(host: str) -> frozenset[str]:
    try:
        return frozenset(str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except OSError:
        return frozenset()
