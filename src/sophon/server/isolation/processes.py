"""Child processes, seen from the server: one per slot of the CPU budget, replaced when it crashes.

Concurrency: a lock ensures that only one thread of the budget uses a child at a time.
Limits: children are started by `exec` and never forked from the server, because gRPC's threads run there. `Limits` sets
how much memory a child may use, and how much CPU time per sample.

A window of a JPEG needs no child as long as every op is our own, and is made in the server's threads. No code of Pillow
or of a plug-in runs for it, only Python and Cython with bounds checks, and the size of the file bounds its time and
memory. With an index, a window takes so little time that passing it through a child would add half as much again
(`sophon bench isolation`). This way there is also only one set of indexes.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cachetools import FIFOCache

from sophon.codec.codec import AheadCodec, Payload
from sophon.codec.cut import Cut, make_payload
from sophon.codec.route import Route
from sophon.codec.table import codec_named
from sophon.codec.window.indexes import DEFAULT_MAX_BYTES
from sophon.codec.window.refusal import WholeNeeded
from sophon.codec.window.windowed import Windowed
from sophon.errors import OpError
from sophon.pipeline import Key, Pipeline, Trace
from sophon.pipeline.ops.volumes.decode import DecodeVolume
from sophon.server.isolation import frames
from sophon.server.isolation.child import LEFT, PIPELINES
from sophon.server.isolation.frames import Kind
from sophon.server.limits import Limits
from sophon.server.maker import ChildLost, Claim, Maker, NoSpace, anything, claimed
from sophon.server.tenants.slot import Slot
from sophon.store.fields import MASK

_RESTART_CPU_S = 0.4  # to start a child
_START_S = 30.0  # a child needs 0.4 s of CPU to start, but many may start at once on a busy machine
_WALL_PER_CPU = 10.0  # times the CPU limit: when a child that sleeps is ended; children have low priority
_SOCKET_BYTES = 1 << 20  # socket buffer: most payloads fit into it as a whole
_CPU_CLOCK = 2  # added to the complement of a process id: the clockid_t of that process's CPU time
# What may hold a secret, by the names that clouds, tools and people give: a plug-in op may need any other variable.
_SECRET = re.compile(
    r"^(AWS|AZURE|GOOGLE|GCP|S3|MINIO|VAULT|SSH|GPG)_"
    r"|TOKEN|SECRET|PASSW|CREDENTIAL|PRIVATE|CONNECTION_STRING|_AUTH|_DSN|_SAS|(KEY|KEY_?ID|KEYS)$",
    re.IGNORECASE,
)


class Processes(Maker):
    """Makes payloads in child processes.

    Args:
        count: Number of child processes.
        limits: What each child may use.
        modules: Modules that each child imports; they register ops.
        indexes: Files of window indexes that each child opens.
        has_reserve: Whether all children are started early and a spare one is kept ready for a crash, so that other
            tenants do not wait for a start.
    """

    def __init__(
        self,
        count: int,
        limits: Limits,
        modules: Sequence[str] = (),
        indexes: Sequence[Path] = (),
        *,
        has_reserve: bool = False,
    ) -> None:
        index_bytes = DEFAULT_MAX_BYTES // max(1, count // 2)  # half of the children work at a time
        options = ["--sample-cpu-s", str(limits.sample_cpu_s), "--memory-bytes", str(limits.child_bytes)]
        options += ["--index-bytes", str(index_bytes), *(f"--import={module}" for module in modules)]
        options += [f"--index={path.resolve()}" for path in indexes]
        wall_s = _START_S + _WALL_PER_CPU * limits.sample_cpu_s
        # The first child is started when it is needed: a node that only sends files and windows needs none. Even
        # without cores for ops there is one, since a trainer may ask for a pipeline to be probed. If there are several
        # tenants, the others are started after it, one with every sample: when one tenant's samples are suspended in
        # favour of another's, the latter need children of their own immediately.
        spares = _Spares(options, wall_s, has_reserve)
        self._children = [_Child(spares) for _ in range(max(1, count))]
        self._spares = spares
        self._unprepared = list(self._children) if has_reserve else []

    @property
    def pids(self) -> list[int]:
        """Process ids of the children that are running."""
        return [child.pid for child in self._children if child.pid]

    def make(
        self,
        slot: Slot,
        pipeline: Pipeline,
        data: bytes,
        key: Key,
        cut: Cut | Route,
        trace: Trace | None = None,
        claim: Claim = anything,
    ) -> Payload:
        """Run in the slot's child, or in this process if that is just as safe."""
        if isinstance(cut, Cut) and _is_safe(pipeline, cut):
            return claimed(make_payload(pipeline, data, key, cut, trace), claim)
        try:
            kind, payload, costs = self._children[slot.number].make(slot, pipeline, data, key, cut, claim)
        except ChildLost:
            slot.elsewhere_s += _RESTART_CPU_S  # to start the replacement
            raise
        slot.elsewhere_s += costs.cpu_s
        if self._unprepared:
            self._prepare()
        if kind is Kind.FAILED:
            raise OpError("An op or codec failed in a child.")
        if kind is Kind.WHOLE:
            raise WholeNeeded("this pass needs the whole file.")
        if payload is None:
            raise NoSpace("no space for the payload that a child made")
        if trace is not None:
            trace.op_s[: len(costs.op_s)] = costs.op_s
            trace.size = costs.size
        return payload

    def probe(self, slot: Slot, pipeline: Pipeline) -> tuple[list[str], str]:
        """Run in the slot's child."""
        return self._children[slot.number].probe(slot, pipeline)

    def _prepare(self) -> None:
        """Start one more child that has not been needed yet."""
        # Another thread may have taken the last; and what cannot be started now is when it is needed.
        with contextlib.suppress(IndexError, OSError):
            while not self._unprepared.pop(0).prepare():
                pass

    def close(self) -> None:
        """End all child processes."""
        self._unprepared.clear()
        for child in self._children:
            child.close()
        self._spares.close()


def _is_safe(pipeline: Pipeline, cut: Cut) -> bool:
    """Return whether a cut can be made without a decoder or ops from outside this package."""
    ahead = isinstance(codec_named(cut.codec), AheadCodec)
    decodes = any(kind == MASK for _, kind in pipeline.fields)  # masks are decoded to be cut
    decodes = decodes or isinstance(pipeline.ops[0], DecodeVolume)  # chunks of a volume may be decompressed to be cut
    return ahead and not decodes and all(type(op).__module__.startswith("sophon.") for op in pipeline.ops)


_Started = tuple["subprocess.Popen[bytes]", socket.socket]


class _Spares:
    """Starts processes, and keeps one in reserve: after the first crash, or from the start if `has_reserve`."""

    def __init__(self, options: list[str], wall_s: float, has_reserve: bool) -> None:
        self._options = options
        self._has_reserve = has_reserve
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._reserve: _Started | None = None
        self._is_closed = False

    def new(self) -> _Started:
        """Start a process, without waiting for it."""
        ours, theirs = socket.socketpair()
        with theirs:
            for end in (ours, theirs):
                for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                    end.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BYTES)
            frames.set_timeout(ours, self._wall_s)
            module = ["-P", "-m", "sophon.server.isolation.child", "--line", str(theirs.fileno())]
            process = subprocess.Popen(
                [sys.executable, *module, *self._options],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,  # a process group, to end everything that the child starts
            )
        return process, ours

    def first(self) -> _Started:
        """Start a process, and keep one in reserve if wanted."""
        started = self.new()
        with self._lock:
            if self._has_reserve and self._reserve is None and not self._is_closed:
                self._reserve = self.new()
        return started

    def instead(self) -> _Started:
        """Return a replacement for a crashed process, from the reserve if that is alive, and start another."""
        with self._lock:
            found, self._reserve = self._reserve, None
            if not self._is_closed:
                self._reserve = self.new()
        if found is not None and found[0].poll() is None:
            return found
        if found is not None:
            found[1].close()
        return self.new()

    def close(self) -> None:
        """End the one in reserve."""
        with self._lock:
            self._is_closed = True
            found, self._reserve = self._reserve, None
        if found is not None:
            found[1].close()
            found[0].kill()
            found[0].wait()


class _Child:
    def __init__(self, spares: _Spares) -> None:
        self._spares = spares
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._has_begun = False
        self._known: FIFOCache[str, None] = FIFOCache(PIPELINES)  # as in the child

    @property
    def pid(self) -> int:
        process = self._process
        return 0 if process is None else process.pid

    def start(self, *, again: bool = False) -> socket.socket:
        """Start the process unless it is running, without waiting for it."""
        if self._line is not None:
            return self._line
        self._process, self._line = self._spares.instead() if again else self._spares.first()
        self._has_begun = False
        self._known.clear()
        return self._line

    def prepare(self) -> bool:
        """Start the process unless it is running; return whether it had to be started."""
        if not self._lock.acquire(blocking=False):  # in use, so it is running
            return False
        try:
            was_running = self._line is not None
            self.start()
        finally:
            self._lock.release()
        return not was_running

    def make(
        self, slot: Slot, pipeline: Pipeline, data: bytes, key: Key, cut: Cut | Route, claim: Claim
    ) -> tuple[Kind, Payload | None, frames.Costs]:
        """Return the outcome, the payload unless it is too large, and the cost."""
        with self._lock, self._watched():
            line = self._ready_for(pipeline)
            since_s = time.monotonic()
            note = frames.MAKE.pack(pipeline.fingerprint.encode(), int(key.seed), int(key.epoch), int(key.sample))
            what = Kind.CONTINUE if isinstance(data, Windowed) else Kind.MAKE
            used_s = self._cpu_clock()
            frames.send(line, what, note + str(cut).encode(), data)
            with slot.holdable(self._hold, used_s):
                kind, note, payload = frames.receive(line, claim)
            if kind not in (Kind.PAYLOAD, Kind.FAILED, Kind.WHOLE):
                raise frames.Broken(f"expected a payload, got {kind!r}")
            most_s = (time.monotonic() - since_s) * (os.cpu_count() or 1)
            return kind, payload, frames.Costs.parse(note, len(pipeline), most_s)

    def probe(self, slot: Slot, pipeline: Pipeline) -> tuple[list[str], str]:
        """Return the digests that the child computes before it crashes, if it does, and why there are no more."""
        found: list[str] = []
        try:
            with self._lock, self._watched():
                line = self._ready_for(pipeline)
                used_s = self._cpu_clock()
                frames.send(line, Kind.PROBE, pipeline.fingerprint.encode())
                with slot.holdable(self._hold, used_s):
                    while (frame := frames.receive(line))[0] is Kind.DIGEST and len(found) < len(pipeline):
                        found.append((frame[2] or b"").decode("ascii", "replace")[:64])
                if frame[0] is not Kind.END:
                    raise frames.Broken(f"expected a digest, got {frame[0]!r}")
        except ChildLost as lost:
            name = pipeline.ops[min(len(found), len(pipeline) - 1)].name()
            return found, f"{name} crashed a child process there ({lost.reason})"
        return found, ""

    def _ready_for(self, pipeline: Pipeline) -> socket.socket:
        line = self.start()
        if not self._has_begun:
            if frames.receive(line)[0] is not Kind.READY:
                raise frames.Broken("the child did not start correctly")
            self._has_begun = True
        if pipeline.fingerprint not in self._known:
            frames.send(line, Kind.PIPELINE, pipeline.fingerprint.encode(), json.dumps(pipeline.to_spec()).encode())
            self._known[pipeline.fingerprint] = None
        return line

    def _hold(self, is_held: bool) -> None:
        """Suspend the process and everything it has started, or resume it."""
        process = self._process
        if process is not None:  # not reaped before `_end`, so its pid has not been reused
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGSTOP if is_held else signal.SIGCONT)

    def _cpu_clock(self) -> Callable[[], float] | None:
        """Return what tells the process's CPU seconds from now on; None where the kernel does not tell."""
        clock = (~self.pid << 3) | _CPU_CLOCK
        try:
            begin_s = time.clock_gettime(clock)
        except OSError:
            return None

        def used_s() -> float:
            try:
                return time.clock_gettime(clock) - begin_s
            except OSError:  # it is gone
                return math.inf

        return used_s

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except frames.Broken as broken:
            had_begun = self._has_begun
            reason = self._end()
            self.start(again=True)  # now, to be ready when the next sample comes
            raise ChildLost(reason, had_begun=had_begun) from broken
        except BaseException:
            self._end()  # there may be half a frame on the line
            raise

    def _end(self) -> str:
        """End the process and return why it died: "crash", or "cpu_limit" if it took too long."""
        process, self._process = self._process, None
        line, self._line = self._line, None
        if line is not None:
            line.close()
        if process is None:
            return "crash"
        try:
            code = process.wait(1.0)  # a process that crashed is gone in a moment
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = -signal.SIGPROF
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # whatever a plug-in or decoder has started
        return "cpu_limit" if code in (-signal.SIGPROF, LEFT) else "crash"

    def close(self) -> None:
        with self._lock:
            self._end()


def _environment() -> dict[str, str]:
    """Return a child's environment: no secrets, the server's modules, and no threads beyond the budget."""
    kept = {name: value for name, value in os.environ.items() if _SECRET.search(name) is None}
    kept["PYTHONPATH"] = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
    return kept | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
