"""Servers that start in a tenth of the time: forked by a process that has loaded what they need, and does nothing else.

Loading the code of `sophon serve` takes a second of CPU, that of each of its children half a second, and the tests
start some hundreds of them. What is forked here is a real process in all else: with the command line, environment,
folder, files and session that it was started with. Tests of how a process starts use the real thing (`cold`).

Concurrency: the template is one thread, so that forking it is safe. It ends with the process that started it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import importlib
import json
import os
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_MAINS = {"sophon": "sophon.cli.main", "sophon.server.isolation.child": "sophon.server.isolation.child"}
_LOADED = ("sophon.cli.main", "sophon.cli.serve", "sophon.server.process", "sophon.server.isolation.child")
_HIGH = 500  # descriptors on their way are kept above this
_ROOM = 1 << 20


# --- whoever starts a process -----------------------------------------------------------------------------------------


class Process:
    """As much of `subprocess.Popen` as servers and their owners use, for a process that another one has forked."""

    def __init__(self, command: list[str], line: int) -> None:
        self.args = command
        self.returncode: int | None = None
        self._line = line
        self.pid = int(os.read(line, 32))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            poll = select.poll()  # which can wait for any number of a descriptor
            poll.register(self._line, select.POLLIN)
            if not poll.poll(None if timeout is None else 1e3 * timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            said = os.read(self._line, 32)
            self.returncode = int(said) if said else -signal.SIGKILL  # the template is gone: nobody knows
            os.close(self._line)
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def __del__(self) -> None:
        if self.returncode is None:
            os.close(self._line)


def popen(command: list[str], **settings: Any) -> Any:
    """Start a process: forked if it is one of ours and needs no pipe, as any other one if not."""
    words = [word for word in command[1:] if word != "-P"]
    streams = [settings.get(name) for name in ("stdin", "stdout", "stderr")]
    is_ours = command[0] == sys.executable and words[:1] == ["-m"] and words[1] in _MAINS
    if not is_ours or subprocess.PIPE in streams or not set(settings) <= _UNDERSTOOD:
        return subprocess.Popen(command, **settings)
    with contextlib.ExitStack() as stack:
        null = stack.enter_context(Path(os.devnull).open("r+b")).fileno()
        first, second, third = (_descriptor(stream, place, null) for place, stream in enumerate(streams))
        third = second if streams[2] == subprocess.STDOUT else third
        passed = list(settings.get("pass_fds", ()))
        asked = {
            "module": words[1],
            "words": words[2:],
            "folder": os.fspath(settings.get("cwd") or Path.cwd()),
            "environment": dict(settings.get("env") or os.environ),
            "is_leader": bool(settings.get("start_new_session")),
            "passed": passed,
        }
        line = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        line.connect(_template())
        socket.send_fds(line, [json.dumps(asked).encode()], [first, second, third, *passed])
        return Process(command, line.detach())


_UNDERSTOOD = {"stdin", "stdout", "stderr", "env", "cwd", "start_new_session", "pass_fds"}

SUBPROCESS = types.SimpleNamespace(**{**vars(subprocess), "Popen": popen})
"""Stands for the module in code that starts servers."""


@contextlib.contextmanager
def cold() -> Iterator[None]:
    """Start servers as users do while this lasts."""
    module = importlib.import_module("sophon.loader.local_server")
    kept, module.subprocess = module.subprocess, subprocess  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.subprocess = kept  # type: ignore[attr-defined]


def _descriptor(stream: Any, place: int, null: int) -> int:
    if stream is None:
        return place
    if stream in (subprocess.DEVNULL, subprocess.STDOUT):
        return null
    return stream if isinstance(stream, int) else int(stream.fileno())


@functools.cache
def _template() -> str:
    """Return where the template of this process listens; start it if there is none."""
    given = os.environ.get("SOPHON_TEMPLATE")
    if given:  # this is a server that was forked by one
        return given
    folder = tempfile.mkdtemp(prefix="warm-")
    path = os.path.join(folder, "line")  # noqa: PTH118 - short: the kernel takes 108 characters
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    command = [sys.executable, "-m", "tests.support.warm", path]
    theirs, ours = os.pipe()  # closed at the end of this process, however that comes
    with tempfile.TemporaryFile() as said:
        process = subprocess.run(command, cwd=root, env=environment, stdin=theirs, stderr=said, check=False)
        if process.returncode:
            said.seek(0)
            raise AssertionError(f"the template of servers does not start: {said.read().decode()}")
    os.close(theirs)
    atexit.register(os.close, ours)
    return path


# --- the template -----------------------------------------------------------------------------------------------------


def _forks(path: str) -> Callable[[], None]:
    """Fork what is asked for until the owner is gone; return only in a forked process, with what it has to run."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(path)
    listening.listen(64)
    awake, woken = socket.socketpair()
    woken.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
    lines: dict[int, socket.socket] = {}
    waiting = selectors.DefaultSelector()
    for what in (listening, awake, 0):
        waiting.register(what, selectors.EVENT_READ)
    if os.fork():  # nobody's child: some tests look at, or kill, all children of their process
        os._exit(0)
    os.setsid()
    while True:
        for key, _ in waiting.select():
            if key.fileobj == 0:
                shutil.rmtree(Path(path).parent, ignore_errors=True)
                os._exit(0)
            if key.fileobj is awake:
                awake.recv(4096)
                _reap(lines)
                continue
            line, _ = listening.accept()
            data, descriptors, _, _ = socket.recv_fds(line, _ROOM, 16)
            if not data:  # who asked was killed meanwhile
                line.close()
                continue
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                waiting.close()
                for end in (listening, awake, woken, line, *lines.values()):
                    end.detach()  # closed below, and not once more by their objects
                return _become(json.loads(data), descriptors, path)
            for descriptor in descriptors:
                os.close(descriptor)
            lines[pid] = line
            _tell(line, pid)
            _reap(lines)


def _reap(lines: dict[int, socket.socket]) -> None:
    while lines:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with lines.pop(pid) as line:
            _tell(line, os.waitstatus_to_exitcode(status))


def _tell(line: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # who asked may have gone
        line.send(b"%d" % number, socket.MSG_NOSIGNAL)


def _become(asked: dict[str, Any], descriptors: list[int], path: str) -> Callable[[], None]:
    """Make this the process that was asked for; return its main function."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if asked["is_leader"]:
        os.setsid()
    wanted = [0, 1, 2, *asked["passed"]]
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _HIGH) for descriptor in descriptors]
    os.closerange(3, _HIGH)
    for descriptor, place in zip(high, wanted, strict=True):
        os.dup2(descriptor, place)
    os.closerange(_HIGH, max(high) + 1)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"], SOPHON_TEMPLATE=path)
    folders = [asked["folder"], *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.path[:] = [folder for folder in folders if folder] + [folder for folder in sys.path if folder not in folders]
    sys.argv = [asked["module"], *asked["words"]]
    main: Callable[[], None] = sys.modules[_MAINS[asked["module"]]].main
    return main


def _main() -> None:
    """Load what servers need, and fork them."""
    for name in _LOADED:
        importlib.import_module(name)
    processes = importlib.import_module("sophon.server.isolation.processes")
    processes.subprocess = SUBPROCESS  # type: ignore[attr-defined]
    _forks(sys.argv[1])()


if __name__ == "__main__":
    _main()
