"""`sophon bench soak`: trainers under load while storage nodes and links fail at random, determined by a seed.

There are three trainers: one reads from one node, one from two nodes with hedged requests, and one from one node, with
the files themselves as a fallback. `bench.cluster.soak` has more nodes, and relays.

Every tensor is compared with the result of the plain pipeline, and every sample with the one expected by the epoch's
order. The seed determines the kind, time and size of each fault; at which point of an epoch it strikes depends on the
machine.

Concurrency: one thread for each trainer, one that causes faults, and one that watches the memory and files of this
process.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from sophon.bench.harness import OnStep, nothing
from sophon.bench.pictures.photo_folder import write_photos
from sophon.bench.proxy import Proxy
from sophon.codec.route import Route
from sophon.loader.loader import DataLoader
from sophon.loader.local_server import LocalServer
from sophon.loader.options import Faults, Output, Workers
from sophon.loader.order.order import epoch_order
from sophon.loader.sources.assignment import Assignment, OffloadWarning
from sophon.loader.sources.sources import FallbackWarning
from sophon.pipeline import Key, Pipeline, ops
from sophon.process.children import children_of
from sophon.process.scratch import scratch_folder
from sophon.store import Store, open_store

RECIPE = Pipeline([ops.Decode(), ops.RandomResizedCrop(64), ops.RandomHorizontalFlip(), ops.ToTensor()])
_PHOTOS = 96
_BATCH = 8
_BUFFER_BYTES = 4 << 20
_PAUSE_S = (2.0, 11.0)  # between two faults: about 90 in ten minutes
_WARM_S = 0.15  # share of the time before memory is watched
_MOMENTS = 20  # entries in the reported timeline
_RATES = (2e6, 5e6, 20e6, None)  # bytes per second on a connection


@dataclass(frozen=True)
class Moment:
    """The state at one moment.

    Args:
        seconds: Seconds since the beginning.
        rss_bytes: Memory of this process.
        files: Number of files that this process has open.
        samples: Number of samples delivered so far.
        faults: Number of faults survived so far.
    """

    seconds: float
    rss_bytes: int
    files: int
    samples: int
    faults: int


@dataclass
class Report:
    """The results of the soak.

    Args:
        samples: Number of samples that all trainers delivered.
        relayed: Number of these that came through relays.
        faults: Number of faults of each kind.
        lost: Samples that were missing from their place in the order.
        repeated: Samples that came twice in an epoch.
        mismatched: Samples whose bits differ from those of the plain pipeline.
        problem: Error that ended a trainer, if any.
        watched: The state at every second.
    """

    samples: int = 0
    relayed: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    repeated: int = 0
    mismatched: int = 0
    problem: BaseException | None = None
    watched: list[Moment] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, **counts: int) -> None:
        """Add to a count that several trainers share."""
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)


@dataclass(frozen=True)
class Trainee:
    """One trainer.

    Args:
        data: Address, or addresses, that it opens.
        policy: Policy of its loader.
        faults: Settings of its loader for faults.
        routes: Routes that its samples take in turn; by default those of the policy.
    """

    data: str | list[str]
    policy: str = "none"
    faults: dict[str, Any] = field(default_factory=dict)
    routes: tuple[Route, ...] = ()


Place: TypeAlias = Callable[[Path, Path, contextlib.ExitStack], tuple[list["Node"], list[Trainee]]]
"""Starts nodes for a folder of photos, with a folder for the nodes' files; returns the nodes and their trainers."""


def two_nodes(photos: Path, folder: Path, stack: contextlib.ExitStack) -> tuple[list[Node], list[Trainee]]:
    """Start two nodes with copies, for three trainers."""
    options = ("--cache-dir", str(folder))
    nodes = [Node(LocalServer(photos, 1, options=options), stack) for _ in range(2)]
    urls = [node.url for node in nodes]
    return nodes, [
        Trainee(urls[:1]),
        Trainee(urls, "2:webp", {"hedge": True}),
        Trainee(urls[:1], "2:webp", {"fallback": photos}),
    ]


def bench_soak(
    minutes: float, seed: int = 0, on_step: OnStep | None = None, place: Place = two_nodes
) -> dict[str, Any]:
    """Run for a number of minutes and return the numbers of delivered, lost, repeated and mismatched samples.

    Args:
        minutes: Duration in minutes.
        seed: Seed of the faults and of the trainers.
        on_step: Called with the last fault, the seconds passed and the total.
        place: Starts the nodes.

    Returns:
        ``{"minutes", "samples", "relayed", "faults", "lost", "repeated", "mismatched", "rss_growth", "fd_growth",
        "kinds", "timeline"}``; growth refers to this process, which runs the trainers, from the first third to the
        last: a share of its memory, and a number of files.
    """
    report = Report()
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        for expected in (FallbackWarning, OffloadWarning):
            warnings.simplefilter("ignore", expected)
        folder = stack.enter_context(scratch_folder("soak"))
        photos = Path(folder, "photos")
        write_photos(photos, "imagenet", _PHOTOS)
        store = open_store(photos, cache_dir=Path(folder))
        nodes, trainees = place(photos, Path(folder), stack)
        loops: list[Callable[[], None]] = [
            *(partial(_train, trainee, store, report, stop, seed=seed) for trainee in trainees),
            lambda: _watch(report, stop),
            lambda: _strike(nodes, random.Random(seed), report, stop),
        ]
        threads = [threading.Thread(target=_guard, args=(loop, report, stop)) for loop in loops]
        start_s = time.monotonic()
        for thread in threads:
            thread.start()
        _wait(minutes * 60, report, stop, on_step or nothing)
        stop.set()
        for thread in threads:
            thread.join()
        passed_s = time.monotonic() - start_s
    if report.problem is not None:
        raise report.problem
    rss_bytes = [moment.rss_bytes for moment in report.watched]
    return {
        "minutes": passed_s / 60,
        "samples": report.samples,
        "relayed": report.relayed,
        "faults": report.faults.total(),
        "lost": report.lost,
        "repeated": report.repeated,
        "mismatched": report.mismatched,
        "rss_growth": _growth(rss_bytes) / max(1.0, _third(rss_bytes, 0)),
        "fd_growth": _growth([moment.files for moment in report.watched]),
        "kinds": dict(report.faults),
        "timeline": [asdict(moment) for moment in report.watched[:: max(1, len(report.watched) // _MOMENTS)]],
    }


def _wait(seconds: float, report: Report, stop: threading.Event, on_step: OnStep) -> None:
    end_s = time.monotonic() + seconds
    while not stop.wait(0.5) and (left_s := end_s - time.monotonic()) > 0:
        on_step(f"{report.faults.total()} faults", int(seconds - left_s), int(seconds))


def _guard(loop: Callable[[], None], report: Report, stop: threading.Event) -> None:
    try:
        loop()
    except BaseException as error:  # noqa: BLE001 - it is raised when all threads have ended
        report.problem = report.problem or error
        stop.set()


class Node:
    """A storage node, or a relay, and the link to it.

    Args:
        server: Its process, which is started here.
        stack: Exit stack that ends the node.
    """

    def __init__(self, server: LocalServer, stack: contextlib.ExitStack) -> None:
        self.server = stack.enter_context(server)
        self.proxy = stack.enter_context(Proxy(self.server.port))
        self.url = self.server.url.replace(str(self.server.port), str(self.proxy.port))


def _train(trainee: Trainee, store: Store, report: Report, stop: threading.Event, *, seed: int) -> None:
    """Take batches, epoch after epoch, and compare every sample."""
    loader = DataLoader(
        trainee.data,
        RECIPE,
        batch_size=_BATCH,
        shuffle=True,
        num_workers=Workers(1, buffer_bytes=_BUFFER_BYTES),
        seed=seed,
        policy=trainee.policy,
        faults=Faults(deadline_s=120.0, **trainee.faults),
        output=Output(columns=("id",)),
    )
    if trainee.routes:
        firsts = tuple(None if route.is_direct else route.cuts[0] for route in trainee.routes)
        turns = np.arange(len(store), dtype=np.uint8) % len(trainee.routes)
        arrivals = tuple(route.arrival for route in trainee.routes)
        loader.dataset.samples.assignment = Assignment(arrivals, turns.astype(np.uint8), firsts)
    names = store.manifest.ids.to_pylist()
    epoch = 0
    while not stop.is_set():
        order = epoch_order(len(store), seed, epoch, shuffle=True).tolist()
        seen: list[str] = []
        for batch in loader:
            for row, name in enumerate(batch[-1]["id"]):
                _compare(batch[0][row], order, len(seen), name, names, Key(seed, epoch, 0), store, report)
                seen.append(name)
            if stop.is_set():
                break
        else:
            report.add(lost=len(set(names) - set(seen)))
        report.add(repeated=len(seen) - len(set(seen)))
        epoch += 1
    report.add(relayed=loader.stats.relayed)


def _compare(
    tensor: Any, order: list[int], place: int, name: str, names: list[str], key: Key, store: Store, report: Report
) -> None:
    report.add(samples=1)
    if place >= len(order) or names[order[place]] != name:
        report.add(lost=1)
        return
    sample = order[place]
    expected = RECIPE.run(store.read(sample), Key(int(key.seed), int(key.epoch), sample))
    if not np.array_equal(tensor.numpy().view(np.uint8), np.ascontiguousarray(expected).view(np.uint8)):
        report.add(mismatched=1)


def _strike(nodes: list[Node], rng: random.Random, report: Report, stop: threading.Event) -> None:
    faults: dict[str, Callable[[Node], None]] = {
        "kill": lambda node: _restart(node.server, node.server.kill),
        "drain": lambda node: _restart(node.server, node.server.stop),
        "stop": lambda node: _pause(node.server, rng.uniform(0.2, 3.0), stop),
        "worker": lambda node: _kill_workers(node.server),
        "reset": lambda node: node.proxy.reset(),
        "reset in a frame": lambda node: node.proxy.reset_after(rng.randrange(1, 200_000)),
        "silence": lambda node: _silence(node.proxy, rng.uniform(0.2, 3.0), stop),
        "bandwidth": lambda node: node.proxy.limit(rng.choice(_RATES)),
    }
    while not stop.wait(rng.uniform(*_PAUSE_S)):
        name, node = rng.choice(list(faults)), rng.choice(nodes)
        faults[name](node)
        report.faults[name] += 1


def _restart(server: LocalServer, end: Callable[[], int]) -> None:
    end()
    server.start()


def _pause(server: LocalServer, seconds: float, stop: threading.Event) -> None:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        stop.wait(seconds)
    finally:
        os.kill(server.pid, signal.SIGCONT)


def _silence(proxy: Proxy, seconds: float, stop: threading.Event) -> None:
    proxy.pause()
    try:
        stop.wait(seconds)
    finally:
        proxy.resume()


def _kill_workers(server: LocalServer) -> None:
    for child in children_of(server.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def _watch(report: Report, stop: threading.Event) -> None:
    page_bytes, start_s = os.sysconf("SC_PAGE_SIZE"), time.monotonic()
    while not stop.wait(1.0):
        rss_bytes = int(Path("/proc/self/statm").read_text().split()[1]) * page_bytes
        files = len(list(Path("/proc/self/fd").iterdir()))
        passed_s = time.monotonic() - start_s
        report.watched.append(Moment(passed_s, rss_bytes, files, report.samples, report.faults.total()))


def _third(values: list[int], which: int) -> float:
    warm = values[int(len(values) * _WARM_S) :] or [0]
    size = max(1, len(warm) // 3)
    return statistics.median(warm[:size] if which == 0 else warm[-size:])


def _growth(values: list[int]) -> float:
    return _third(values, 2) - _third(values, 0)
