"""The two processes of a run: ``sophon serve`` and the trainer, each on its own node and CPU.

Concurrency: the trainer reads one JSON object per line on its standard input and answers with lines: any number of
``{"progress": [done, count]}`` and one ``{"result": …}`` or ``{"error": …}``. It ends when its input ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sophon.bench.rig.shell import tool
from sophon.errors import Error
from sophon.process.children import kill_tree, tree_cpu_s
from sophon.process.scratch import scratch_folder

_START_S = 120.0
_PATIENCE_S = 15.0


class RigError(Error):
    """Raised when a process of the rig fails."""


class _Process:
    """A child process with a log, which always ends with the ``with`` block."""

    def __init__(self, enter: Sequence[str], cpus: Sequence[int] | None) -> None:
        self._before = [*enter, *pinned(cpus)]
        self._opened = ExitStack()
        self._folder = self._opened.enter_context(scratch_folder("rig"))
        self._log = self._folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def _start(self, *command: str, talks: bool = False, environment: Mapping[str, str] | None = None) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)  # the child finds the package as this process did
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*self._before, sys.executable, *command],
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": paths, **(environment or {})},
                start_new_session=True,  # Ctrl-C goes to the benchmark, which then ends its children in order
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def cpu_s(self) -> float:
        """CPU seconds that the process and its children have used so far, including those that have ended."""
        return tree_cpu_s(self.pid)

    def kill(self) -> None:
        """Kill the process and all its descendants, as if its machine had lost power."""
        kill_tree(self.pid)

    def words(self) -> str:
        """Return the end of the process's log."""
        return self._log.read_text(errors="replace").strip()[-2000:]

    def close(self) -> None:
        """End the process: with SIGTERM, then with SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            except BaseException:  # another Ctrl-C while the process ends
                process.kill()
                raise
        self._opened.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class Server(_Process):
    """``sophon serve``.

    Args:
        datasets: Paths by name.
        cores: Number of cores for ops.
        host: Address to listen on.
        limit_bytes_per_s: The server's own limit, if the kernel does not shape the link.
        enter: Command prefix that makes it run on its node.
        cpus: CPUs to run on; None for any.
        options: Further options of `sophon serve`.
    """

    def __init__(
        self,
        datasets: Mapping[str, Path],
        cores: float,
        *,
        host: str = "127.0.0.1",
        limit_bytes_per_s: float | None = None,
        enter: Sequence[str] = (),
        cpus: Sequence[int] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(enter, cpus)
        self._host = host
        self._ready = self._folder / "ready.json"
        self._command = ["-m", "sophon", "serve", "--host", host, "--port", "0", "--cores", f"{cores:g}"]
        self._command += ["--ready-file", str(self._ready), "--cache-dir", str(self._folder)]
        if host != "127.0.0.1":
            self._command += ["--insecure"]  # in a network namespace with no other processes
        if limit_bytes_per_s is not None:
            self._command += ["--limit", f"{limit_bytes_per_s:.0f}B/s"]
        self._command += [f"{name}={path}" for name, path in datasets.items()]
        self._command += options
        self._port = 0

    def __enter__(self) -> Server:
        try:
            self._start(*self._command)
            self._wait()
        except BaseException:
            self.close()
            raise
        return self

    def _wait(self) -> None:
        assert self._process is not None
        end_s = time.monotonic() + _START_S
        while not self._ready.exists():
            if self._process.poll() is not None or time.monotonic() > end_s:
                raise RigError(f"sophon serve did not start: {self.words() or 'its log is empty'}")
            time.sleep(0.02)
        self._port = json.loads(self._ready.read_text())["port"]

    def url(self, dataset: str) -> str:
        """Address of a data set."""
        return f"grpc://{self._host}:{self._port}/{dataset}"


class Program(_Process):
    """Any Python program that runs until it is ended, such as a node of another loader.

    Args:
        command: What follows `python` on its command line.
        ready: What its output contains once it is ready.
        enter: Command prefix that makes it run on its node.
        cpus: CPUs to run on; None for any.
        environment: Variables to set in addition to those of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        ready: str,
        *,
        enter: Sequence[str] = (),
        cpus: Sequence[int] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(enter, cpus)
        self._command, self._ready, self._environment = command, ready, environment

    def __enter__(self) -> Program:
        try:
            self._start(*self._command, environment=self._environment)
            assert self._process is not None
            end_s = time.monotonic() + _START_S
            while self._ready not in self._log.read_text(errors="replace"):
                if self._process.poll() is not None or time.monotonic() > end_s:
                    raise RigError(f"{' '.join(self._command)} did not start: {self.words() or 'its log is empty'}")
                time.sleep(0.05)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Kill the program and all its descendants, which might otherwise keep running."""
        if self._process is not None:
            self.kill()
        super().close()


class Relay(Server):
    """``sophon relay`` in front of a node, on loopback.

    Args:
        nodes: Addresses by the name of the data set.
        cores: Number of cores for ops.
    """

    def __init__(self, nodes: Mapping[str, str], cores: float) -> None:
        super().__init__({}, cores)
        self._command = ["-m", "sophon", "relay", "--port", "0", "--cores", f"{cores:g}", "--trusted"]
        self._command += ["--ready-file", str(self._ready), *(f"{name}={node}" for name, node in nodes.items())]


class Trainer(_Process):
    """A process that runs epochs on command; see `sophon.bench.rig.trainer`.

    Args:
        enter: Command prefix that makes it run on its node.
        cpus: CPUs to run on; None for any.
        environment: Variables to set in addition to those of this process.
        module: The module to run, which has a command `hello`.
    """

    def __init__(
        self,
        enter: Sequence[str] = (),
        cpus: Sequence[int] | None = None,
        environment: Mapping[str, str] | None = None,
        module: str = "sophon.bench.rig.trainer",
    ) -> None:
        super().__init__(enter, cpus)
        self._module = module
        # One trainer core is one core: no thread pools of NumPy or torch besides the loader's own threads.
        self._environment = {"OMP_NUM_THREADS": "1", **(environment or {})}

    def __enter__(self) -> Trainer:
        try:
            self._start("-m", self._module, talks=True, environment=self._environment)
            self.do("hello")
        except BaseException:
            self.close()
            raise
        return self

    def do(self, what: str, on_step: Callable[[int, int], None] | None = None, **arguments: Any) -> Any:
        """Run one command in the process and return its result.

        Raises:
            RigError: The command failed, or the process has ended.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise RigError(f"the trainer has ended: {self.words()}") from None
        for line in self._process.stdout:
            message = json.loads(line)
            if "progress" in message:
                if on_step is not None:
                    on_step(*message["progress"])
            elif "error" in message:
                raise RigError(f"the trainer failed: {message['error']}")
            else:
                return message["result"]
        raise RigError(f"the trainer ended: {self.words() or 'its log is empty'}")


def pinned(cpus: Sequence[int] | None) -> list[str]:
    """Return a command prefix that pins a process to these CPUs, if there is a tool for that."""
    path = tool("taskset")
    return [] if cpus is None or path is None else [path, "--cpu-list", ",".join(map(str, cpus))]


def cpus_for_two() -> tuple[list[int], list[int]] | None:
    """Return a CPU for the server and another for the trainer; None if they cannot be pinned or there is only one."""
    if not hasattr(os, "sched_getaffinity") or tool("taskset") is None:
        return None
    cpus = sorted(os.sched_getaffinity(0))
    return ([cpus[0]], [cpus[1]]) if len(cpus) > 1 else None
