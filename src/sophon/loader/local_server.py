"""LocalServer: a real server process on loopback, for tests, notebooks and demos."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from sophon.errors import ConfigError, TransportError
from sophon.process.scratch import scratch_folder


class LocalServer:
    """Runs ``sophon serve`` on this machine while a ``with`` block lasts.

    Args:
        path: What to serve.
        cores: CPU cores for ops.
        name: Name of the data set; the last part of the path by default.
        port: Port to listen on; 0 for any free one.
        options: Further options of ``sophon serve``, as text.
        start_s: How long to wait until the server is ready.
    """

    def __init__(
        self,
        path: str | Path,
        cores: float = 1,
        *,
        name: str = "data",
        port: int = 0,
        options: tuple[str, ...] = (),
        start_s: float = 60.0,
    ) -> None:
        self._command = ["serve", str(path), "--name", name, "--cores", f"{cores:g}", *options]
        self._name = name
        self._start_s = start_s
        self._process: subprocess.Popen[bytes] | None = None
        self._scheme = "grpc"
        self.port = port
        self.metrics_port: int | None = None

    @property
    def url(self) -> str:
        """Address of the data set."""
        return f"{self._scheme}://127.0.0.1:{self.port}/{self._name}"

    @property
    def pid(self) -> int:
        """Process id of the server."""
        if self._process is None:
            raise ConfigError("the server is not running; use it in a with block or call start()")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> LocalServer:
        """Start the process and wait until it accepts requests; a restarted server keeps its port."""
        if self._process is not None:
            raise ConfigError(f"the server is already running, at {self.url}")
        with scratch_folder() as folder:
            ready_file, log = Path(folder, "ready.json"), Path(folder, "log")
            command = [sys.executable, "-m", "sophon", *self._command]
            command += ["--port", str(self.port), "--ready-file", str(ready_file)]
            with log.open("wb") as output:
                # A separate session: Ctrl-C in a notebook or shell is meant for the training, not for the server.
                self._process = subprocess.Popen(
                    command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
            try:
                ready = self._wait(ready_file, log)
            except BaseException:
                self.kill()
                raise
        self.port, self.metrics_port = ready["port"], ready["metrics_port"]
        self._scheme = ready["url"].partition("://")[0]
        return self

    def _wait(self, ready_file: Path, log: Path) -> dict[str, Any]:
        assert self._process is not None
        end_s = time.monotonic() + self._start_s
        while not ready_file.exists():
            if self._process.poll() is not None:
                said = log.read_text(errors="replace").strip().removeprefix("sophon: ")
                raise TransportError(f"sophon serve ended at once: {said}")
            if time.monotonic() > end_s:
                raise TransportError(
                    f"sophon serve was not ready after {self._start_s:g} s; its output: {log.read_text()}"
                )
            time.sleep(0.02)
        message: dict[str, Any] = json.loads(ready_file.read_text())
        return message

    def stop(self, patience_s: float = 15.0) -> int:
        """Let the server finish its work, and return its exit code."""
        return self._end(signal.SIGTERM, patience_s)

    def kill(self) -> int:
        """Kill the server at once, as a power cut would."""
        return self._end(signal.SIGKILL, 15.0)

    def _end(self, how: signal.Signals, patience_s: float) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, how)
        try:
            return process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def __enter__(self) -> LocalServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
