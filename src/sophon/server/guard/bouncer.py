"""Fends off floods from outside: connections that never authenticate, and addresses that open many of them.

gRPC accepts any connection and processes whatever arrives on it, long before the gate is asked, and offers no bound on
that. So the node checks its own sockets a few times a second. A connection on which no call has been admitted yet may
send a little and wait a little; beyond that it is closed. An address with many such connections, or one that keeps
opening new ones, is blocked for a while: the kernel drops packets from that address to the listening socket (a classic
socket filter, which needs no privileges). So is one that sends more bytes than its calls account for, whether admitted
or not (`server.guard.incoming`).

No address gets more than half of the descriptors that this process may have, whatever tokens it knows. Should all of
them be in use, which is what a flood aims at, connections are checked without any.

Concurrency: one separate thread; threads of calls report the callers that the gate has admitted. Limits: Linux only.
Trainers that share an address with a flooder are blocked too, except for their existing connections.
"""

from __future__ import annotations

import ctypes
import ipaddress
import logging
import math
import os
import resource
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from cachetools import LRUCache

from sophon.process.alarm import Alarm
from sophon.process.sockets import (
    Borrowed,
    Peer,
    Traffic,
    are_visible,
    copy_of,
    open_files,
    peer_of,
    sockets,
    traffic_of,
    wait_for_change,
)
from sophon.server.guard.incoming import HEADER_BYTES, Incoming

_LOOK_S = 0.02
_QUIET_LOOK_S = 0.5  # while there are no connections; 20 checks a second took 0.2 % of a core on an idle node
_ADMITTED_LOOK_S = 0.1  # at admitted connections: ten gigabits a second are a hundred megabytes in that time
_NOTICED_BYTES = 1 << 16  # on all admitted connections together; less than this does not make the thread look closer
_ALARMED_S = 0.005  # between a rejected call and the check, and so between two checks while calls are rejected
_LONGEST_S = 1.0  # between checks if the number of open files is unchanged: one may have replaced another
_STRANGER_BYTES = 1 << 14  # before a call is admitted; a loader's first call has a few KB
_FLOOD_BYTES = 1 << 16  # few first calls are this long; if one is, it is admitted within milliseconds
_STRANGER_S = 15.0  # how long a new connection may be idle; gRPC connects before there is anything to ask
_CALL_S = 2.0  # how long a connection may wait for admission once it has sent more than `_STRANGER_BYTES`
# Connections per address, open or within `_MEMORY_S`, without an admitted call; even this many ranks on one machine are
# admitted sooner.
_MOST_STRANGERS = 128
_MEMORY_S = 2.0
_MOST_REFUSED = 256  # calls per address within `_MEMORY_S`
_BAN_S = 10.0  # the first time; twice as long whenever the address does it again
_LONGEST_BAN_S = 640.0
_MOST_BANNED = 64  # blocked addresses; each adds a few instructions for every new connection
_KNOWN = 4096
_LEAST_OF_ONE = 256  # admitted connections that an address may have however few descriptors there are
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_NET = 0xFFF00000  # SKF_NET_OFF: where the IP header begins
_LOAD, _LOAD_BYTE, _EQUAL, _AND, _RETURN = 0x20, 0x30, 0x15, 0x54, 0x06
_PASS, _DROP = 0x7FFFFFFF, 0

LOG = logging.getLogger("sophon")


class Bouncer:
    """Guards the connections of a listening port.

    Args:
        port: Port of the node.
        alarm: Set by whoever rejects a call: the connections are then checked at once, since gRPC starts a thread for
            each call, thousands of them in the time between two checks of a quiet node.
    """

    def __init__(self, port: int, alarm: Alarm | None = None) -> None:
        self._port = port
        self._alarm = alarm or Alarm()
        self._lock = threading.RLock()  # around `_known`, bans and what leads to them
        self._known: dict[Peer, None] = {}  # the newest last
        self._incoming = Incoming()
        self._since_s: dict[Peer, float] = {}
        self._sent_bytes: dict[Peer, int] = {}  # by those on whose connection no call has been admitted yet
        self._gone: deque[tuple[float, str, int]] = deque()  # bytes of those that went without an admitted call
        self._refused: deque[tuple[float, str]] = deque()
        self._refusals: Counter[str] = Counter()  # of addresses in `_refused`
        self._seen: deque[tuple[float, Peer]] = deque()
        self._banned_until_s: dict[str, float] = {}
        self._ban_s: LRUCache[str, float] = LRUCache(_KNOWN)  # the next ban of addresses that had one
        # Inodes of sockets that need no further check: unrelated ones, and those of connections on which a call was
        # admitted, with their addresses.
        self._settled: dict[int, str | None] = {}
        self._admitted: dict[Peer, _Admitted] = {}  # the latter
        self._received_bytes = 0  # on admitted connections, when they were last looked at
        self._over = threading.Event()
        self.thrown_out = 0
        self._thread: threading.Thread | None = None
        self._listeners: list[socket.socket] = []
        if are_visible():
            # Kept, since looking for them takes long when hundreds of threads answer calls.
            self._listeners = [_kept(found) for found in _listeners(port)]
            self._thread = threading.Thread(target=self._run, name="sophon-bouncer", daemon=True)
            self._thread.start()

    def knows(self, peer: str, size_bytes: int = 0, header_bytes: int = HEADER_BYTES) -> None:
        """Record that a call was admitted, and its size; `peer` is gRPC's name for the other side."""
        found = parse_peer(peer)
        if found is None:
            return
        self._incoming.called(found, size_bytes, header_bytes)
        if found in self._known:
            return
        with self._lock:
            self._known[found] = None
            while len(self._known) > _KNOWN:
                self._known.pop(next(iter(self._known)))

    def refused(self, peer: str) -> None:
        """Record that a call was refused, and block addresses that make many such calls.

        This is done by the thread of the call: while hundreds of threads refuse calls, the thread that looks at
        connections has to wait for its turn so often that it takes seconds.
        """
        found, now_s = parse_peer(peer), time.monotonic()
        if found is None or not self._listeners:
            return
        with self._lock:
            self._refused.append((now_s, found[0]))
            self._refusals[found[0]] += 1
            while self._refused[0][0] < now_s - _MEMORY_S:
                _, address = self._refused.popleft()
                self._refusals[address] -= 1
                if not self._refusals[address]:
                    del self._refusals[address]
            if self._refusals[found[0]] > _MOST_REFUSED:
                self._ban(found[0], now_s)

    def close(self) -> None:
        """Stop watching connections."""
        self._over.set()
        self._alarm.set()
        if self._thread is not None:
            self._thread.join(2.0)
        with self._lock:
            while self._listeners:
                self._listeners.pop().close()

    def _run(self) -> None:
        has_strangers, looked_s, count = False, -math.inf, 0
        while not self._over.is_set():
            if self._admitted and not has_strangers:
                self._wait_for_change(count, looked_s + _LONGEST_S)
            else:
                self._alarm.wait(_LOOK_S if has_strangers else _QUIET_LOOK_S)
            is_alarmed = self._alarm.is_set
            if is_alarmed:
                self._over.wait(_ALARMED_S)
                self._alarm.clear()
            now_s, before, count = time.monotonic(), count, open_files()
            has_new = count != before or now_s - looked_s >= (_LONGEST_S if count else _QUIET_LOOK_S)
            try:
                self._look_at_admitted()
                if is_alarmed or has_strangers or has_new:
                    looked_s, has_strangers = now_s, self._look(now_s)
            except Exception:
                LOG.exception("connections could not be checked; the next check is in %g s", _QUIET_LOOK_S)
                has_strangers = False
                self._over.wait(_QUIET_LOOK_S)

    def _wait_for_change(self, files: int, until_s: float) -> None:
        """Wait until there may be something to look at: all is quiet on most nodes most of the time."""
        connections = [one.connection for one in self._admitted.values()]
        enough_bytes = self._received_bytes + _NOTICED_BYTES
        most_s = max(until_s - time.monotonic(), _ADMITTED_LOOK_S)
        wait_for_change(self._alarm, connections, enough_bytes, files, each_s=_ADMITTED_LOOK_S, most_s=most_s)

    def _look(self, now_s: float) -> bool:
        """Check all connections once; return whether there are any without an admitted call."""
        strangers: Counter[str] = Counter()
        there: dict[Peer, int] = {}
        still: list[int] = []
        fresh: dict[int, str | None] = {}
        admitted: dict[Peer, _Admitted] = {}
        for number, inode, connection in sockets(self._settled, still):
            try:
                found = _caller(connection, self._port)
                borrowed = None if found is None or found[0] not in self._known else Borrowed(number, inode)
            except OSError:
                continue  # the connection is being closed
            if found is None or borrowed is not None:
                fresh[inode] = None if found is None else found[0][0]
                if found is not None and borrowed is not None:
                    admitted[found[0]] = _Admitted(number, borrowed)
                    if self._has_enough(found[0][0], fresh):
                        self._throw_out(connection)
                continue
            peer, received = found[0], found[1].received_bytes
            there[peer] = received
            if peer not in self._since_s:
                self._since_s[peer] = now_s
                self._seen.append((now_s, peer))
            strangers[peer[0]] += 1
            waits_s = now_s - self._since_s[peer]
            is_flood = received > _FLOOD_BYTES
            is_long = waits_s > (_STRANGER_S if received <= _STRANGER_BYTES else _CALL_S)
            if is_flood or is_long or peer[0] in self._banned_until_s:
                self._throw_out(connection)
            if is_flood:
                self._ban(peer[0], now_s)
        self._settled = {inode: self._settled[inode] for inode in still} | fresh
        self._admitted |= admitted
        self._since_s = {peer: since_s for peer, since_s in self._since_s.items() if peer in there}
        self._count_gone(there, now_s)
        while self._seen and self._seen[0][0] < now_s - _MEMORY_S:
            self._seen.popleft()
        never_let_in = Counter(peer[0] for _, peer in self._seen if peer not in self._known)
        for address, count in (never_let_in | strangers).items():
            if count > _MOST_STRANGERS:
                self._ban(address, now_s)
        self._let_in_again(now_s)
        return bool(there or self._banned_until_s)

    def _look_at_admitted(self) -> None:
        """Check how much is under way on connections on which a call was admitted."""
        traffic = {peer: seen for peer, one in self._admitted.items() if (seen := one.connection.traffic()) is not None}
        if len(traffic) < len(self._admitted):
            self._admitted = {peer: self._admitted[peer] for peer in traffic}
        self._received_bytes = sum(seen.received_bytes for seen in traffic.values())
        now_s = time.monotonic()
        for peer in self._incoming.excessive(traffic):
            self._throw_out_admitted(peer)
            self._ban(peer[0], now_s)

    def _throw_out_admitted(self, peer: Peer) -> None:
        with suppress(OSError), copy_of(self._admitted[peer].number) as connection:
            found = _caller(connection, self._port)
            if found is not None and found[0] == peer:
                self._throw_out(connection)

    def _count_gone(self, there: dict[Peer, int], now_s: float) -> None:
        """Block addresses that send much on connections which end before a call on them is admitted.

        A call that is reset at once costs its sender 40 bytes, and gRPC several KB for a while.
        """
        for peer, sent_bytes in self._sent_bytes.items():
            if peer not in there and peer not in self._known:
                self._gone.append((now_s, peer[0], sent_bytes))
        self._sent_bytes = there
        while self._gone and self._gone[0][0] < now_s - _MEMORY_S:
            self._gone.popleft()
        for address in {address for _, address, _ in self._gone} - self._banned_until_s.keys():
            if sum(sent_bytes for _, one, sent_bytes in self._gone if one == address) > _FLOOD_BYTES:
                self._ban(address, now_s)

    def _has_enough(self, address: str, fresh: Mapping[int, str | None]) -> bool:
        """Return whether an address has more admitted connections than its share of the descriptors."""
        most = max(_LEAST_OF_ONE, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        if len(self._settled) + len(fresh) <= most:
            return False
        return sum(one == address for one in (*self._settled.values(), *fresh.values())) > most

    def _throw_out(self, connection: socket.socket) -> None:
        self.thrown_out += 1
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the connection is already gone

    def _ban(self, address: str, now_s: float) -> None:
        with self._lock:
            if address in self._banned_until_s or len(self._banned_until_s) >= _MOST_BANNED:
                return
            ban_s = self._ban_s.get(address, _BAN_S)
            self._ban_s[address] = min(2 * ban_s, _LONGEST_BAN_S)
            self._banned_until_s[address] = now_s + ban_s
            filter_out(self._listeners, self._banned_until_s)
        LOG.warning("%s floods this node with connections or calls: blocked for %g s", address, ban_s)

    def _let_in_again(self, now_s: float) -> None:
        with self._lock:
            over = [address for address, until_s in self._banned_until_s.items() if until_s < now_s]
            if over:
                for address in over:
                    del self._banned_until_s[address]
                filter_out(self._listeners, self._banned_until_s)


class _Admitted(NamedTuple):
    """A connection on which a call was admitted.

    Args:
        number: Its descriptor.
        connection: What shows how much arrives on it.
    """

    number: int
    connection: Borrowed


def parse_peer(text: str) -> Peer | None:
    """Return the address and port in gRPC's name ``ipv4:127.0.0.1:1234`` or ``ipv6:%5B::1%5D:1234``."""
    host, _, port = text.replace("%5B", "[").replace("%5D", "]").partition(":")[2].rpartition(":")
    if not port.isdecimal():
        return None
    return host.strip("[]").removeprefix("::ffff:"), int(port)


def filter_out(listeners: Iterable[socket.socket], addresses: Iterable[str]) -> None:
    """Make the kernel drop packets from some addresses to listening sockets."""
    program = filter_for(addresses)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    pointer = struct.pack("@HL", len(program), ctypes.addressof(code))
    for listener in listeners:
        try:
            if len(program) > 1:
                listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)
            else:
                listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        except OSError:
            continue  # the socket has no filter, or the system allows none


def filter_for(addresses: Iterable[str]) -> list[tuple[int, int, int, int]]:
    """Return a socket filter that drops packets from some addresses and lets all others pass."""
    program: list[tuple[int, int, int, int]] = []
    for address in addresses:
        packed = ipaddress.ip_address(address.split("%")[0]).packed
        words = [int.from_bytes(packed[at : at + 4], "big") for at in range(0, len(packed), 4)]
        version, start = (4, 12) if len(words) == 1 else (6, 8)
        checks = [(_LOAD_BYTE, 0, 0, _NET), (_AND, 0, 0, 0xF0), (_EQUAL, 0, 0, version << 4)]
        for number, word in enumerate(words):
            checks += [(_LOAD, 0, 0, _NET + start + 4 * number), (_EQUAL, 0, 0, word)]
        # On a mismatch, continue after these checks and the drop that follows them.
        program += [
            (code, 0, len(checks) - at if code == _EQUAL else 0, value) for at, (code, _, _, value) in enumerate(checks)
        ]
        program.append((_RETURN, 0, 0, _DROP))
    return [*program, (_RETURN, 0, 0, _PASS)]


def _kept(found: socket.socket) -> socket.socket:
    """Return a copy that stays open.

    Not `socket.dup`, which also makes the original blocking, since both have their mode in common: gRPC would then wait
    for the next connection with the thread that is to read from the others.
    """
    return socket.socket(fileno=os.dup(found.fileno()))


def _is_here(found: socket.socket, port: int) -> bool:
    if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
        return False
    return bool(found.getsockname()[1] == port)


def _listeners(port: int) -> Iterator[socket.socket]:
    for _, _, found in sockets((), []):
        if _is_here(found, port) and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            yield found


def _caller(found: socket.socket, port: int) -> tuple[Peer, Traffic] | None:
    """Return the other side of a connection to a port, and what it has sent; None for any other socket."""
    if not _is_here(found, port) or found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return None
    peer = peer_of(found)
    return None if peer is None else (peer, traffic_of(found))
