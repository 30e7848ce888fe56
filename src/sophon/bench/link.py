"""`sophon bench link`: raw samples over Flight on loopback, compared with the same bytes over a bare socket."""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from sophon.bench.harness import OnStep, nothing
from sophon.codec.cut import RAW
from sophon.link.credentials import Credentials
from sophon.link.flight import FlightTransport
from sophon.link.wire import Request
from sophon.loader.local_server import LocalServer
from sophon.pipeline import Pipeline, ops
from sophon.process.children import tree_cpu_s
from sophon.process.scratch import scratch_folder
from sophon.store import open_store

SAMPLE_BYTES = 100_000
_SAMPLES = 1_000
_REQUEST_SAMPLES = 64
_ROUND_S = 0.5  # long enough for threads and buffers to reach their usual sizes, whatever the machine
_TIMEOUT_S = 60.0
_SPEC = Pipeline([ops.Decode()]).to_spec()
_GB = 1e9


def bench_link(seconds: float, folder: Path | None = None, on_step: OnStep | None = None) -> dict[str, float]:
    """Fetch raw samples on one connection, in turns with a bare socket, and count CPU on both sides.

    Args:
        seconds: Time for the whole measurement.
        folder: Images to fetch; 1,000 files of 100 KB if left out.
        on_step: Called with the name, number and count of the next step.

    Returns:
        ``{"flight_gb_per_s", "flight_cpu_s_per_gb", "socket_gb_per_s", "socket_cpu_s_per_gb"}``
    """
    report = on_step or nothing
    report("preparing", 0, 1)
    rounds = max(3, int(seconds / 1.5))
    with scratch_folder("link") as made:
        if folder is None:
            for i in range(_SAMPLES):
                Path(made, f"{i:06d}.jpg").write_bytes(np.random.default_rng(i).bytes(SAMPLE_BYTES))
        manifest = open_store(folder or made, cache_dir=Path(made)).manifest
        paths = [str(Path(folder or made, name)) for name in manifest.ids.to_pylist()]
        with (
            LocalServer(folder or made, cores=0, options=("--cache-dir", str(made))) as server,
            _SocketServer(paths, manifest.sizes.tolist()) as bare,
            ThreadPoolExecutor(2) as pool,
        ):
            # The node is trusted, like the bare socket: its batches are not inspected before they are unpacked.
            transport = FlightTransport(server.url, credentials=Credentials(trusted=True))
            contestants = {
                "flight": (lambda: _flight_pass(transport, pool, len(paths)), server.pid),
                "socket": (bare.receive_all, bare.pid),
            }
            rows: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
            for number in range(rounds + 1):
                report(f"round {number}", number, rounds + 1)
                for name, (run, server_pid) in contestants.items():
                    row = _measure(run, server_pid)
                    if number:  # the first round warms caches and connections
                        rows[name].append(row)
            transport.close()
    return {
        f"{name}_{what}": float(np.median([row[i] for row in values]))
        for name, values in rows.items()
        for i, what in enumerate(("gb_per_s", "cpu_s_per_gb"))
    }


def _measure(run: Callable[[], int], server_pid: int) -> tuple[float, float]:
    """Repeat a pass for a while, and return GB per second and CPU seconds per GB, of both sides together."""
    here_s, there_s, start_s = time.process_time(), tree_cpu_s(server_pid), time.monotonic()
    size_gb = wall_s = 0.0
    while wall_s < _ROUND_S:
        size_gb += run() / _GB
        wall_s = time.monotonic() - start_s
    return size_gb / wall_s, (time.process_time() - here_s + tree_cpu_s(server_pid) - there_s) / size_gb


def _flight_pass(transport: FlightTransport, pool: ThreadPoolExecutor, count: int) -> int:
    """Fetch all samples, with two requests on the connection as in the loader, so that neither side waits."""
    parts = [range(start, min(start + _REQUEST_SAMPLES, count)) for start in range(0, count, _REQUEST_SAMPLES)]
    return sum(pool.map(lambda part: _fetch(transport, tuple(part)), parts))


def _fetch(transport: FlightTransport, samples: tuple[int, ...]) -> int:
    request = Request("data", _SPEC, 0, 0, samples, (RAW,) * len(samples))
    return sum(len(reply.payload) for reply in transport.fetch(request, _TIMEOUT_S))


class _SocketServer:
    """Sends some files over a plain TCP connection on request."""

    def __init__(self, paths: list[str], sizes: list[int]) -> None:
        self._sizes = sizes
        listener = socket.create_server(("127.0.0.1", 0))
        self._port = listener.getsockname()[1]
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_send_files, args=(listener, paths), daemon=True)
        self._process.start()
        listener.close()
        self._socket = socket.create_connection(("127.0.0.1", self._port))

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def receive_all(self) -> int:
        self._socket.sendall(b"g")
        # A fresh buffer per sample, as any user of the bytes would need.
        for size in self._sizes:
            buffer = memoryview(bytearray(size))
            got = 0
            while got < size:
                got += self._socket.recv_into(buffer[got:])
        return sum(self._sizes)

    def __enter__(self) -> _SocketServer:
        return self

    def __exit__(self, *_: Any) -> None:
        self._socket.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()


def _send_files(listener: socket.socket, paths: list[str]) -> None:
    connection, _ = listener.accept()
    while connection.recv(1):
        for path in paths:
            connection.sendall(Path(path).read_bytes())
