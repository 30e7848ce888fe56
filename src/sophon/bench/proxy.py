"""A TCP proxy between trainer and storage node that imitates bad networks, for fault tests and `bench soak`.

Concurrency: one thread for each direction of each connection; all methods may be called from any thread.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

_NO_LINGER = struct.pack("ii", 1, 0)  # close() sends a TCP reset instead of a normal close


class Proxy:
    """Forwards bytes to a port of this machine, until told otherwise.

    Args:
        port: Port to forward connections to.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._open = threading.Event()
        self._open.set()
        self._fuse: int | None = None
        self._bytes_per_s: float | None = None
        self._closed = False
        self.passed_bytes = 0
        self.resets = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def reset(self) -> None:
        """Break all connections, as a firewall or a crashed router does."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
            self.resets += 1
        for pair in pairs:
            _break(pair)

    def reset_after(self, size_bytes: int) -> None:
        """Break all connections after a given number of further bytes from the node."""
        self._fuse = self.passed_bytes + size_bytes

    def limit(self, bytes_per_s: float | None) -> None:
        """Limit the bytes per second from the node, on each connection; None for no limit."""
        self._bytes_per_s = bytes_per_s

    def pause(self) -> None:
        """Silently stop forwarding data."""
        self._open.clear()

    def resume(self) -> None:
        """Resume forwarding data."""
        self._open.set()

    def close(self) -> None:
        """Close all connections and stop listening."""
        self._closed = True
        self._open.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()
        for thread in self._threads:
            thread.join(5)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            with self._lock:
                self._pairs.append((near, far))
            for source, sink, down in ((near, far, False), (far, near, True)):
                thread = threading.Thread(target=self._pass_on, args=(source, sink, down), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, down: bool) -> None:
        try:
            while data := source.recv(1 << 14):
                self._open.wait()
                if down:
                    if self._bytes_per_s is not None:
                        time.sleep(len(data) / self._bytes_per_s)
                    self.passed_bytes += len(data)
                    if self._fuse is not None and self.passed_bytes >= self._fuse:
                        self._fuse = None
                        sink.sendall(data[: len(data) // 2])  # in the middle of a frame
                        self.reset()
                        return
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one side is gone: close the other too
            _break((source, sink))


def _break(pair: tuple[socket.socket, socket.socket]) -> None:
    for end in pair:
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            end.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from the socket
        end.close()
