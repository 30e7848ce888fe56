"""What the link really carries: one bare TCP connection from the storage node to the trainer.

Run as a program it is the sender: it listens on HOST, writes its port to standard output, and sends for SECONDS.
"""

from __future__ import annotations

import socket
import sys
import time

SECONDS = 2.0
_WARM_SHARE = 0.25  # of the time that does not count: the window of TCP is still opening
_PIECE = bytes(1 << 16)


def send(host: str, seconds: float) -> None:
    """Send nothing of interest to the first who connects."""
    with socket.create_server((host, 0)) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        listener.settimeout(60.0)
        connection, _ = listener.accept()
        with connection:
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                connection.sendall(_PIECE)


def receive(host: str, port: int, seconds: float) -> float:
    """Return bytes per second of payload."""
    received, start_s = 0, time.monotonic()
    counted_from_s, counted_bytes = start_s, 0
    with socket.create_connection((host, port), timeout=60.0) as connection:
        while piece := connection.recv(1 << 20):
            now_s = time.monotonic()
            received += len(piece)
            if now_s - start_s < _WARM_SHARE * seconds:
                counted_from_s, counted_bytes = now_s, received
            last_s = now_s
    return (received - counted_bytes) / (last_s - counted_from_s)


if __name__ == "__main__":
    send(sys.argv[1], float(sys.argv[2]))
