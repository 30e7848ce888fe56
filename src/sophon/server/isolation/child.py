"""A child process of the server: runs ops and codecs on the files that the server passes to it, and nothing else.

A child opens only the window indexes it is given, has no connection except the line to its server, knows no token, and
ends when that line is closed. Whatever goes wrong stays inside the child: an exception is answered, the server notices
a crash, and the kernel ends a process that uses too much CPU or memory.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import json
import os
import resource
import select
import signal
import socket
import threading
import time

from cachetools import FIFOCache

from sophon.codec.route import Route
from sophon.codec.window.indexes import INDEXES
from sophon.codec.window.refusal import WholeNeeded
from sophon.codec.window.sidecar import Sidecar
from sophon.codec.window.windowed import Windowed
from sophon.errors import ArtifactError
from sophon.pipeline import Key, Pipeline, Trace
from sophon.pipeline.probe import each_digest
from sophon.process.threads import NICE
from sophon.server.isolation import frames
from sophon.server.isolation.frames import Kind
from sophon.server.maker import made

LEFT = 75  # exit code of a child that was working when the server closed the line
# Pipelines kept; the oldest is dropped first. The server mirrors this list and must know exactly what it contains.
# Not by last use, since both sides would have to agree on that too.
PIPELINES = 64


class Child:
    """Answers the frames of one server.

    Args:
        line: Socket to the server.
        sample_cpu_s: CPU seconds for one sample; after that, or up to a quarter more, the kernel ends the process.
    """

    def __init__(self, line: socket.socket, sample_cpu_s: float) -> None:
        self._line = line
        self._sample_cpu_s = sample_cpu_s
        self._pipelines: FIFOCache[bytes, Pipeline] = FIFOCache(PIPELINES)
        self._counted_s = time.process_time()
        self._armed_s: float | None = None

    def run(self) -> None:
        """Answer frames until the server goes away."""
        answer = {
            Kind.PIPELINE: self._keep,
            Kind.MAKE: self._make,
            Kind.CONTINUE: self._continue,
            Kind.PROBE: self._probe,
        }
        with contextlib.suppress(frames.Broken):
            frames.send(self._line, Kind.READY)
            while True:
                kind, note, data = frames.receive(self._line)
                answer[kind](note, data or b"")

    def _keep(self, note: bytes, data: bytes) -> None:
        self._pipelines[note] = Pipeline.from_spec(json.loads(data))

    def _make(self, note: bytes, data: bytes) -> None:
        fingerprint, seed, epoch, sample = frames.MAKE.unpack_from(note)
        route = Route.parse(note[frames.MAKE.size :].decode())
        cut = route.arrival
        kind, payload = Kind.FAILED, b""
        trace = Trace(len(self._pipelines[fingerprint]))
        self._arm()
        # Decoders, codecs and plug-in ops may raise anything; the trainer meets the same problem and can say more.
        with contextlib.suppress(Exception):
            way = cut if route.is_direct else route
            try:
                payload = made(self._pipelines[fingerprint], data, Key(seed, epoch, sample), way, trace)
                kind = Kind.PAYLOAD
            except WholeNeeded:
                kind = Kind.WHOLE
        # This includes receiving the file and sending the payload before it.
        now_s = time.process_time()
        cpu_s, self._counted_s = now_s - self._counted_s, now_s
        costs = frames.Costs(cpu_s, trace.size, tuple(trace.op_s[: cut.k]))
        frames.send(self._line, kind, costs.pack(), payload)

    def _continue(self, note: bytes, data: bytes) -> None:
        self._make(note, Windowed(data))

    def _probe(self, note: bytes, _: bytes) -> None:
        self._arm()
        with contextlib.suppress(Exception):
            for digest in each_digest(self._pipelines[note]):
                frames.send(self._line, Kind.DIGEST, data=digest.encode())
        frames.send(self._line, Kind.END)

    def _arm(self) -> None:
        """Make the kernel end the process if the next sample takes too long.

        The timer counts only CPU time. It is reset once a quarter of its time is used up, since resetting it for every
        sample would cost a tenth of a millisecond each time.
        """
        now_s = time.process_time()
        if self._armed_s is None or now_s - self._armed_s > self._sample_cpu_s / 4:
            self._armed_s = now_s
            signal.setitimer(signal.ITIMER_PROF, self._sample_cpu_s * 1.25)


def _leave_with_server(line: int) -> None:
    """End the process when the server is gone, even if an op sleeps and never returns to the line."""
    gone = select.poll()
    gone.register(line, 0)  # a hang-up is always reported
    gone.poll()
    os._exit(LEFT)


def main() -> None:
    """Run with the arguments that the server gives."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--line", type=int, required=True)
    parser.add_argument("--sample-cpu-s", type=float, required=True)
    parser.add_argument("--memory-bytes", type=int, required=True)
    parser.add_argument("--index-bytes", type=int, required=True)
    parser.add_argument("--index", dest="indexes", action="append", default=[])
    parser.add_argument("--import", dest="modules", action="append", default=[])
    settings = parser.parse_args()
    # Ctrl-C in a terminal reaches all its processes, but the server decides when its children end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold people's pictures
    resource.setrlimit(resource.RLIMIT_DATA, (settings.memory_bytes, settings.memory_bytes))
    faulthandler.enable()  # prints the stack if a child crashes
    INDEXES.max_bytes = settings.index_bytes
    for path in settings.indexes:
        with contextlib.suppress(ArtifactError):  # removed or replaced since the server opened it: indexes are rebuilt
            INDEXES.attach(Sidecar(path))
    for module in settings.modules:
        importlib.import_module(module)
    line = socket.socket(fileno=settings.line)
    # If a process started from here held the line too, the server would not notice that this one died.
    line.set_inheritable(False)
    os.register_at_fork(after_in_child=line.close)
    threading.Thread(target=_leave_with_server, args=(settings.line,), daemon=True).start()
    Child(line, settings.sample_cpu_s).run()


if __name__ == "__main__":
    main()
