"""A long, narrow link in user space: a TCP proxy that delays the bytes it forwards.

In both directions, every piece of data arrives half a round trip after it was read, and all connections share one rate
from the node to the trainer. The data in flight is bounded by the link's bandwidth-delay product and a queue of 100 ms,
so the node sees the same back-pressure as on a real link. The proxy runs as a separate process (``python -m``), to take
no time from a trainer's interpreter; it spends about 30 µs on a piece of 64 KiB.

Concurrency: one event loop. The class is the parent's side, used by one thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections import deque
from typing import Any

_PIECE_BYTES = 1 << 16
_SOCKET_BYTES = 1 << 17
_QUEUE_S = 0.1
_FRAME_BYTES = 1448  # smallest piece that is passed on: what fits into a frame


class DelayLine:
    """The proxy as a process, for the length of a ``with`` block.

    Args:
        port: Port of this machine to forward connections to.
        bytes_per_s: Rate of the link towards the trainer.
        rtt_s: Round-trip time.
    """

    def __init__(self, port: int, bytes_per_s: float, rtt_s: float = 0.0) -> None:
        self._told = {"port": port, "bytes_per_s": bytes_per_s, "rtt_s": rtt_s}
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    def __enter__(self) -> DelayLine:
        command = [sys.executable, "-m", __name__, json.dumps(self._told)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.communicate()  # the process ends when its standard input does
            self._process = None


class _Link:
    """The state shared by all connections.

    Args:
        bytes_per_s: Rate of the link.
        delay_s: One-way delay.
    """

    def __init__(self, bytes_per_s: float, delay_s: float) -> None:
        self.bytes_per_s, self.delay_s = bytes_per_s, delay_s
        self.held_bytes = int(bytes_per_s * (delay_s + _QUEUE_S)) + _PIECE_BYTES
        self._free_s = 0.0

    def sent_at(self, now_s: float, size_bytes: int, is_shaped: bool) -> float:
        """Return the time at which a piece that arrives now will have been sent at the link's rate."""
        if not is_shaped:
            return now_s
        self._free_s = max(self._free_s, now_s) + size_bytes / self.bytes_per_s
        return self._free_s


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: _Link, is_shaped: bool) -> None:
    """Forward data in one direction, with the delay."""
    loop = asyncio.get_running_loop()
    waiting: deque[tuple[float, bytes]] = deque()
    held, came, left = 0, asyncio.Event(), asyncio.Event()

    async def deliver() -> None:
        nonlocal held
        while True:
            while not waiting:
                came.clear()
                await came.wait()
            due_s, data = waiting.popleft()
            if due_s > (now_s := loop.time()):
                await asyncio.sleep(due_s - now_s)
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
            held -= len(data)
            left.set()

    out = asyncio.create_task(deliver())
    try:
        while data := await reader.read(_PIECE_BYTES):
            held += len(data)
            # In small pieces, as a link passes frames on one by one: nothing waits for the end of a large piece.
            step = max(_FRAME_BYTES, int(link.bytes_per_s * 0.002)) if is_shaped else len(data)
            for begin in range(0, len(data), step):
                piece = data[begin : begin + step]
                waiting.append((link.sent_at(loop.time(), len(piece), is_shaped) + link.delay_s, piece))
            came.set()
            while held > link.held_bytes and not out.done():
                left.clear()
                await left.wait()
        waiting.append((loop.time() + link.delay_s, b""))
        came.set()
        await out
    finally:
        out.cancel()


async def _serve(port: int, bytes_per_s: float, rtt_s: float) -> None:
    link = _Link(bytes_per_s, rtt_s / 2)

    async def connected(near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        # The kernel's own buffers would hold megabytes before the node noticed any back-pressure.
        near_out.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        far = socket.socket()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
        far.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(far, ("127.0.0.1", port))
            far_in, far_out = await asyncio.open_connection(sock=far, limit=_PIECE_BYTES)
        except OSError:
            far.close()
            near_out.close()
            return
        ways = (_pump(near_in, far_out, link, False), _pump(far_in, near_out, link, True))
        with contextlib.suppress(OSError, asyncio.CancelledError):  # one side is gone, or the line is closed
            await asyncio.gather(*ways)
        for end in (near_out, far_out):
            end.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=_PIECE_BYTES)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def _main(told: dict[str, Any]) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(told["port"], told["bytes_per_s"], told["rtt_s"]))


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
