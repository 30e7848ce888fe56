"""Measures the actual rate of the link with one bare TCP connection from the storage node to the trainer.

The kernel reports how many bytes have arrived and when the last one did, and its buffers are large enough for the
transfer to continue for a while without either process. So the result reflects the link, not how busy the machine is.

Run as a program, it is the sender: it listens on HOST, writes its port to standard output, and sends until the other
side closes the connection. Limits: Linux; without root the buffers are as large as the system allows.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import time

SECONDS = 2.0
_WARM_SHARE = 0.25  # share of the time that does not count: TCP's window is still opening
_LONGEST_S = 60.0  # longest time that either side waits for the other
_PIECE = bytes(1 << 16)
_BUFFER_BYTES = 1 << 25  # two seconds at 100 Mbit/s; the kernel needs twice the memory of the data it holds
_SENDING, _RECEIVING = 32, 33  # SO_SNDBUFFORCE and SO_RCVBUFFORCE, which Python has no names for
_TCP_INFO = struct.Struct("=52xI72xQ")  # tcpi_last_data_recv, in ms, and tcpi_bytes_received
_AT_ONCE_S = 1e-3
_PAUSE_S = 1e-3  # between two checks of the received bytes: the buffer holds far more at any rate


def send(host: str) -> None:
    """Send arbitrary bytes to the first client."""
    with socket.create_server((host, 0)) as listener:
        _enlarge(listener, _SENDING, socket.SO_SNDBUF)
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        listener.settimeout(_LONGEST_S)
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):  # the other side has seen enough
            connection.settimeout(_LONGEST_S)
            while True:
                connection.sendall(_PIECE)


def receive(host: str, port: int, seconds: float) -> float:
    """Return bytes per second of payload.

    Raises:
        ConnectionError: The sender ended early, or sent nothing.
    """
    with socket.socket() as connection:
        _enlarge(connection, _RECEIVING, socket.SO_RCVBUF)
        # Linux acknowledges at once, instead of after 40 ms, only while less than this is left to be read.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _BUFFER_BYTES)
        connection.settimeout(_LONGEST_S)
        start_s = time.monotonic()
        connection.connect((host, port))
        connection.setblocking(False)
        counted_from_s = counted_bytes = None
        while time.monotonic() - start_s < _LONGEST_S:
            time.sleep(_PAUSE_S)  # a blocking call would wait for as many bytes as SO_RCVLOWAT says
            _drain(connection)
            last_s, received_bytes = _received(connection)
            if counted_from_s is None or counted_bytes is None:
                if last_s - start_s >= _WARM_SHARE * seconds:
                    counted_from_s, counted_bytes = last_s, received_bytes
            elif last_s - counted_from_s >= (1 - _WARM_SHARE) * seconds:
                return (received_bytes - counted_bytes) / (last_s - counted_from_s)
    raise ConnectionError("the goodput sender sends nothing")


def _drain(connection: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while connection.recv(1 << 20):
            pass
        raise ConnectionError("the goodput sender ended early")


def _received(connection: socket.socket) -> tuple[float, int]:
    """Return the arrival time of the last byte, and the number of bytes that have arrived, read or not."""
    while True:
        now_s = time.monotonic()
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        if time.monotonic() - now_s < _AT_ONCE_S:  # otherwise this process was interrupted in between
            last_ms, received_bytes = _TCP_INFO.unpack(info)
            return now_s - last_ms / 1000, received_bytes


def _enlarge(endpoint: socket.socket, by_force: int, otherwise: int) -> None:
    """Enlarge the kernel's buffers; connections inherit them from their listener."""
    try:
        endpoint.setsockopt(socket.SOL_SOCKET, by_force, _BUFFER_BYTES)
    except PermissionError:
        endpoint.setsockopt(socket.SOL_SOCKET, otherwise, _BUFFER_BYTES)


if __name__ == "__main__":
    send(sys.argv[1])
