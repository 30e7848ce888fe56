"""`sophon bench tune`: num_workers="auto" compared with every fixed setting of a sweep, on three workloads.

The workloads are slow reads that can run concurrently, volumes that take CPU, and a consumer that is slower than both.
The epochs of all settings take turns. The best fixed setting is the one with the best median, which is only known
afterwards.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sophon.bench.harness import OnStep, nothing, one_torch_thread
from sophon.bench.scans.heavy_tail import RECIPE, seconds_per_voxel, write_volumes
from sophon.link.transport import Fetch
from sophon.link.wire import Reply, Request
from sophon.loader.dataset import RemoteDataset
from sophon.loader.loader import DataLoader
from sophon.loader.options import Workers
from sophon.loader.sources.local import LocalTransport
from sophon.process.scratch import scratch_folder
from sophon.store import Store, open_store

BATCH_SIZE = 16
WORKERS = (1, 2, 4)
REQUESTS = (2, 4, 8, 16)
_MIN_ROUNDS = 3
_TUNING_EPOCHS = 4


@dataclass(frozen=True)
class Workload:
    """A workload.

    Args:
        samples: Number of samples.
        finish_s: CPU seconds to finish a sample.
        read_s: Seconds of waiting to read a sample.
        consumer_s: Seconds that the consumer takes for a batch.
    """

    samples: int
    finish_s: float
    read_s: float = 0.0
    consumer_s: float = 0.0


WORKLOADS = {
    "io": Workload(768, 0.0003, read_s=0.008),
    "cpu": Workload(256, 0.006),
    "consumer": Workload(256, 0.001, consumer_s=0.06),
}
PARALLEL_READS = 8  # concurrent reads of the synthetic storage


class SlowReads(LocalTransport):
    """A store with slow reads, some of which run concurrently, like a file server.

    Args:
        store: The store that holds the samples.
        address: Name of the store in messages.
        read_s: Seconds of one read.
        parallel: Number of concurrent reads; others wait for their turn.
    """

    def __init__(self, store: Store, address: str, read_s: float, parallel: int = PARALLEL_READS) -> None:
        super().__init__(store, address)
        self._read_s = read_s
        self._turns = threading.Semaphore(parallel)

    def fetch(self, request: Request, timeout_s: float) -> Fetch:
        """Read samples, each after a wait."""
        return _SlowFetch(super().fetch(request, timeout_s), self._turns, self._read_s)


class _SlowFetch(Fetch):
    def __init__(self, fetch: Fetch, turns: threading.Semaphore, read_s: float) -> None:
        self._fetch = fetch
        self._turns = turns
        self._read_s = read_s

    def __iter__(self) -> Iterator[Reply]:
        for reply in self._fetch:
            with self._turns:
                time.sleep(self._read_s)
            yield reply


def bench_tune(
    seconds: float, names: tuple[str, ...] = tuple(WORKLOADS), on_step: OnStep | None = None
) -> dict[str, Any]:
    """Measure samples per second of a loader that tunes itself and of fixed settings.

    Args:
        seconds: Time for each workload; at least three epochs of each setting.
        names: Which of WORKLOADS to run.
        on_step: Called with the name, number and count of the next step.

    Returns:
        By workload ``{"auto_per_s", "best_per_s", "best", "auto", "auto_of_best", "fixed": {"2×4": …}}``
    """
    report = on_step or nothing
    result: dict[str, Any] = {}
    with scratch_folder("bench") as folder, one_torch_thread(torch):
        per_voxel_s = seconds_per_voxel()
        for number, name in enumerate(names):
            report(name, number, len(names))
            work = WORKLOADS[name]
            path = Path(folder, f"{name}.parquet")
            write_volumes(path, [work.finish_s] * work.samples, per_voxel_s)
            result[name] = _race(path, work, seconds)
    return result


def _race(path: Path, work: Workload, seconds: float) -> dict[str, Any]:
    store = open_store(path)
    dataset = RemoteDataset(SlowReads(store, str(path), work.read_s), RECIPE)
    # Settings that cannot matter are not swept: requests if reads take no time, workers if they have almost nothing to
    # do.
    requests = REQUESTS if work.read_s else (2,)
    settings: list[tuple[int | str, int | None]] = [("auto", None), *itertools.product(WORKERS, requests)]
    loaders = {
        setting: DataLoader(dataset, batch_size=BATCH_SIZE, num_workers=Workers(setting[0], max_requests=setting[1]))
        for setting in settings
    }
    rates: dict[tuple[int | str, int | None], list[float]] = {setting: [] for setting in settings}
    auto = loaders["auto", None]
    for _ in range(_TUNING_EPOCHS):
        _epoch(auto, work)
    end_s = time.monotonic() + seconds
    while len(rates[settings[0]]) < _MIN_ROUNDS or time.monotonic() < end_s:
        for setting, loader in loaders.items():
            start_s = time.monotonic()
            _epoch(loader, work)
            rates[setting].append(work.samples / (time.monotonic() - start_s))
    medians = {setting: statistics.median(values) for setting, values in rates.items()}
    tuned = medians.pop(("auto", None))
    best = max(medians, key=lambda setting: medians[setting])
    found = auto.setting
    return {
        "auto_per_s": tuned,
        "best_per_s": medians[best],
        "auto_of_best": tuned / medians[best],
        "auto": f"{found.workers}×{found.requests}",
        "best": f"{best[0]}×{best[1]}",
        "fixed": {f"{workers}×{asked}": rate for (workers, asked), rate in medians.items()},
    }


def _epoch(loader: DataLoader, work: Workload) -> None:
    for _ in loader:
        if work.consumer_s:
            time.sleep(work.consumer_s)  # like a busy GPU: the CPU is free in the meantime
