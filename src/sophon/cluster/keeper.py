"""Keeps one `sophon` process running: starts, restarts, adopts and drains it.

The process is not a child of its keeper: a short-lived helper starts it in a new session, so it survives the death of
the keeper. Its state is kept in a folder::

    FOLDER/lock         held by the one keeper that may act; others only read
    FOLDER/child.json   {"pid": 4711, "started": 8812345, "arguments": ["serve", …]}
    FOLDER/ready.json   written by `--ready-file`: url, port, pid
    FOLDER/log          output of the process

The next keeper finds the process by its pid and start time, which together are unique, and keeps watching it. A
restarted process listens on the same port as its predecessor, so its address does not change.

Concurrency: `look` and `stop` are called by one thread at a time. Limits: Linux only, since it reads `/proc`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sophon.artifact import replacing
from sophon.errors import ConfigError

LOOK_S = 0.25  # between two checks: a process that died serves again in a second or two, mostly its own startup
_PAUSES_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # before a restart, if the process keeps dying soon after a start
_SOON_S = 10.0
_MOST_LOG_BYTES = 16 << 20
_POLL_S = 0.05
_LAUNCH = (
    "import subprocess as s, sys; "
    "p = s.Popen(sys.argv[2:], stdin=s.DEVNULL, stdout=open(sys.argv[1], 'ab'), stderr=s.STDOUT, "
    "start_new_session=True); sys.stdout.write(str(p.pid))"
)


@dataclass(frozen=True)
class Child:
    """A process that a keeper started.

    Args:
        pid: Process id.
        started: Start time as the kernel records it, in clock ticks since boot.
        arguments: What follows `sophon` on its command line.
    """

    pid: int
    started: int
    arguments: tuple[str, ...]

    @property
    def is_running(self) -> bool:
        """Whether the process is still running; its pid may belong to a different process by now."""
        return _started(self.pid) == self.started


class Keeper:
    """Keeps one process running.

    Args:
        folder: Folder for the state of the process, on a local disk.
        arguments: What follows `sophon` on its command line, without ``--port`` and ``--ready-file``.
        port: Port to listen on; 0 picks a free one and keeps it across restarts.
    """

    def __init__(self, folder: Path, arguments: Sequence[str], port: int = 0) -> None:
        self._folder = folder
        self._arguments = tuple(arguments)
        self._port = port
        folder.mkdir(parents=True, exist_ok=True)
        self._lock: int | None = None
        self.starts = 0
        self.adopted = False
        self._early = 0  # consecutive deaths soon after a start
        self._started_s = 0.0
        self._next_s = 0.0

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def arguments(self) -> tuple[str, ...]:
        """What follows `sophon` on the command line."""
        return self._arguments

    @property
    def child(self) -> Child | None:
        """The process that was started last."""
        said = _read(self._folder / "child.json")
        try:
            return Child(int(said["pid"]), int(said["started"]), tuple(map(str, said["arguments"])))
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def ready(self) -> dict[str, Any]:
        """Contents of the ready file; empty until the process is ready and after it ends."""
        child, said = self.child, _read(self._folder / "ready.json")
        return said if child is not None and child.is_running and said.get("pid") == child.pid else {}

    # --- what is done -------------------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Start the process unless it is already running with the given arguments; return whether it is running."""
        child = self.child
        if not self._may_act():
            return child is not None and child.is_running
        if child is not None and child.is_running:
            if child.arguments == self._arguments:
                self.adopted = self.adopted or self.starts == 0
                return True
            self.stop()
        if time.monotonic() >= self._next_s:
            self._start()
            return True
        return False

    def _start(self) -> None:
        now_s = time.monotonic()
        self._early = self._early + 1 if self.starts and now_s - self._started_s < _SOON_S else 0
        self._next_s = now_s + _PAUSES_S[min(self._early, len(_PAUSES_S) - 1)]
        port = self._port or int(_read(self._folder / "ready.json").get("port", 0) or 0)
        if self._early > 1:  # the port may be the cause
            port = self._port
        ready, log = self._folder / "ready.json", self._folder / "log"
        with contextlib.suppress(FileNotFoundError):
            if log.stat().st_size > _MOST_LOG_BYTES:
                log.unlink()
        command = [sys.executable, "-m", "sophon", *self._arguments, "--port", str(port), "--ready-file", str(ready)]
        # -S and -E: this process only starts another one, then exits.
        launcher = [sys.executable, "-S", "-E", "-c", _LAUNCH, str(log), *command]
        told = subprocess.run(launcher, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if told.returncode or not told.stdout.isdigit():
            raise ConfigError(f"{command[0]} cannot be started: {told.stderr.decode(errors='replace')[-500:]}")
        pid = int(told.stdout)
        child = Child(pid, _started(pid) or 0, self._arguments)
        with replacing(self._folder / "child.json") as file:
            file.write(json.dumps(asdict(child)).encode())
        self.starts += 1
        self._started_s = now_s

    def stop(self, patience_s: float = 35.0) -> None:
        """Let the process finish its work and exit; kill it after a timeout."""
        child = self.child
        if child is None or not child.is_running:
            return
        _kill(child, signal.SIGTERM)
        end_s = time.monotonic() + patience_s
        while child.is_running and time.monotonic() < end_s:
            time.sleep(_POLL_S)
        if child.is_running:
            _kill(child, signal.SIGKILL)

    def close(self) -> None:
        """Stop watching; the process keeps running."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def words(self) -> str:
        """Return the last lines of the log, for error messages."""
        try:
            return (self._folder / "log").read_text(errors="replace")[-2000:].strip()
        except OSError:
            return ""

    def _may_act(self) -> bool:
        if self._lock is None:
            lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return False
            self._lock = lock
        return True


def _kill(child: Child, how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.pid, how)


def _started(pid: int) -> int | None:
    """Return the start time of a process in clock ticks; None if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _read(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
