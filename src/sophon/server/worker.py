"""A worker process: runs ops and codecs on files that its server hands to it, and nothing else.

It opens no file but the window indexes that it is told of, has no line but the one to its server, is told no token,
and ends when that line ends. What goes wrong in it stays in it: an exception is answered, a crash is noticed by the
server, and what takes too much CPU or memory is ended by the kernel.
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
from collections import OrderedDict

from sophon.codec.cut import Cut, make_payload
from sophon.codec.window.indexes import INDEXES
from sophon.codec.window.sidecar import Sidecar
from sophon.errors import ArtifactError
from sophon.pipeline import Key, Pipeline, Trace
from sophon.pipeline.probe import each_digest
from sophon.server import frames
from sophon.server.budget import NICE
from sophon.server.frames import Kind

LEFT = 75  # exit code of a worker that was at work when the server hung up
PIPELINES = 64  # kept, the oldest goes first; the server keeps count of the same


class Worker:
    """Answers the frames of one server.

    Args:
        line: To the server.
        sample_cpu_s: After so many CPU seconds with one sample, or a quarter more, the kernel ends the process.
    """

    def __init__(self, line: socket.socket, sample_cpu_s: float) -> None:
        self._line = line
        self._sample_cpu_s = sample_cpu_s
        self._pipelines: OrderedDict[bytes, Pipeline] = OrderedDict()
        self._counted_s = time.process_time()
        self._armed_s: float | None = None

    def run(self) -> None:
        """Answer until the server goes away."""
        answer = {Kind.PIPELINE: self._keep, Kind.MAKE: self._make, Kind.PROBE: self._probe}
        with contextlib.suppress(frames.Broken):
            while True:
                kind, note, data = frames.receive(self._line)
                answer[kind](note, data)

    def _keep(self, note: bytes, data: bytes) -> None:
        self._pipelines[note] = Pipeline.from_spec(json.loads(data))
        if len(self._pipelines) > PIPELINES:
            self._pipelines.popitem(last=False)

    def _make(self, note: bytes, data: bytes) -> None:
        fingerprint, seed, epoch, sample = frames.MAKE.unpack_from(note)
        cut = Cut.parse(note[frames.MAKE.size :].decode())
        kind, payload = Kind.FAILED, b""
        trace = Trace(len(self._pipelines[fingerprint]))
        self._arm()
        # Decoders, codecs and plug-in ops may raise anything; the trainer meets the same trouble, with better words.
        with contextlib.suppress(Exception):
            payload = make_payload(self._pipelines[fingerprint], data, Key(seed, epoch, sample), cut, trace)
            kind = Kind.PAYLOAD
        # What it took to get this file and to send the last payload is counted too.
        now_s = time.process_time()
        cpu_s, self._counted_s = now_s - self._counted_s, now_s
        costs = frames.Costs(cpu_s, trace.size, tuple(trace.op_s[: cut.k]))
        frames.send(self._line, kind, costs.pack(), payload)

    def _probe(self, note: bytes, _: bytes) -> None:
        self._arm()
        with contextlib.suppress(Exception):
            for digest in each_digest(self._pipelines[note]):
                frames.send(self._line, Kind.DIGEST, data=digest.encode())
        frames.send(self._line, Kind.END)

    def _arm(self) -> None:
        """See to it that the kernel ends the process if the next sample takes too long.

        The timer counts CPU time only, and is set anew when a quarter of it is used up: to set it for every sample
        would cost a tenth of a millisecond each time.
        """
        now_s = time.process_time()
        if self._armed_s is None or now_s - self._armed_s > self._sample_cpu_s / 4:
            self._armed_s = now_s
            signal.setitimer(signal.ITIMER_PROF, self._sample_cpu_s * 1.25)


def _leave_with_server(line: int) -> None:
    """End the process when the server is gone, though an op may sleep and never come back to the line."""
    gone = select.poll()
    gone.register(line, 0)  # a hang-up is told of whether it is asked for or not
    gone.poll()
    os._exit(LEFT)


def main() -> None:
    """Run as the server starts it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--line", type=int, required=True)
    parser.add_argument("--sample-cpu-s", type=float, required=True)
    parser.add_argument("--worker-bytes", type=int, required=True)
    parser.add_argument("--index-bytes", type=int, required=True)
    parser.add_argument("--index", dest="indexes", action="append", default=[])
    parser.add_argument("--import", dest="modules", action="append", default=[])
    settings = parser.parse_args()
    # Ctrl-C in a terminal reaches every process in it; the server decides when its workers end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold people's pictures
    resource.setrlimit(resource.RLIMIT_DATA, (settings.worker_bytes, settings.worker_bytes))
    faulthandler.enable()  # says where a crash came from
    INDEXES.max_bytes = settings.index_bytes
    for path in settings.indexes:
        with contextlib.suppress(ArtifactError):  # gone or replaced since the server looked: they are built anew
            INDEXES.attach(Sidecar(path))
    for module in settings.modules:
        importlib.import_module(module)
    line = socket.socket(fileno=settings.line)
    # A child that had the line too would keep the server from noticing that this process fell.
    line.set_inheritable(False)
    os.register_at_fork(after_in_child=line.close)
    threading.Thread(target=_leave_with_server, args=(settings.line,), daemon=True).start()
    Worker(line, settings.sample_cpu_s).run()


if __name__ == "__main__":
    main()
