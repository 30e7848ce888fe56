"""`sophon bench slow`: a few samples take a hundred times longer than the others, as in SpeedyLoader's study.

torch's DataLoader with worker processes, and ours with as many threads in strict and in relaxed order, take turns on
the same volumes, epoch by epoch. No loader can beat the bound: the seconds of work of all samples, divided by the
number of workers.

Work is either NumPy on volumes ("cpu") or waiting ("wait"). The seconds of NumPy work are the CPU seconds of reading
and finishing, which torch's workers do, measured in the same epochs; on a shared machine, no loader reaches that bound.
The seconds of waiting are known in advance and need no core.
"""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from sophon.bench.harness import OnStep, nothing, one_torch_thread
from sophon.bench.scans.heavy_tail import RECIPE, WAITING, Pause, seconds_per_voxel, side_for, write_volumes
from sophon.loader.loader import DataLoader
from sophon.pipeline import Key, Pipeline
from sophon.process.scratch import scratch_folder
from sophon.store import open_store

BATCH_SIZE = 4  # as in the study
SAMPLES = 240
WORKERS = 2
SLOW_SHARE = 0.05
QUICK_S = 0.003
SLOW_S = (0.3, 1.0)
_MIN_ROUNDS = 3


def heavy_tail(count: int, seed: int = 0) -> list[float]:
    """Return the seconds that each sample should take: 3 ms for most, 300 ms to 1 s for one in twenty."""
    slow = round(count * SLOW_SHARE)
    low, high = SLOW_S
    # Spread evenly over the range, so that every run has the same amount of work.
    times = [low + (high - low) * (i + 0.5) / slow for i in range(slow)] + [QUICK_S] * (count - slow)
    random.Random(seed).shuffle(times)
    return times


def bench_slow(
    seconds: float, samples: int = SAMPLES, workers: int = WORKERS, work: str = "cpu", on_step: OnStep | None = None
) -> dict[str, Any]:
    """Measure samples per second of torch's loader and ours on a heavy-tailed workload.

    Args:
        seconds: Time for the whole measurement; at least three epochs per loader.
        samples: Number of samples in the data set.
        workers: Number of workers of each loader.
        work: "cpu" or "wait".
        on_step: Called with the name, number and count of the next step.

    Returns:
        ``{"torch_per_s", "strict_per_s", "relaxed_per_s", "bound_per_s", …}``
    """
    report = on_step or nothing
    with scratch_folder("bench") as folder, one_torch_thread(torch):
        report("volumes", 0, 1)
        path = Path(folder, "volumes.parquet")
        pipeline = RECIPE if work == "cpu" else WAITING
        s_per_voxel = seconds_per_voxel() if work == "cpu" else Pause.s_per_voxel
        times = heavy_tail(samples)
        write_volumes(path, times, s_per_voxel)
        known_s = sum(side_for(wanted_s, s_per_voxel) ** 3 * s_per_voxel for wanted_s in times)
        common: dict[str, Any] = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": workers}
        loaders: dict[str, Any] = {
            "torch": TorchDataLoader(Volumes(path, pipeline), persistent_workers=workers > 0, **common),
            "strict": DataLoader(path, pipeline, order="strict", **common),
            "relaxed": DataLoader(path, pipeline, order="relaxed", **common),
        }
        rates: dict[str, list[float]] = {name: [] for name in (*loaders, "bound")}
        end_s = time.monotonic() + seconds
        rounds = -1  # the first epoch fills the page cache, starts workers and finds slow samples
        while rounds < _MIN_ROUNDS or time.monotonic() < end_s:
            for name, loader in loaders.items():
                report(f"epoch {rounds + 1} of {name}", max(rounds, 0), _MIN_ROUNDS)
                before_s = _work_s(loader) if name == "relaxed" else 0.0
                start_s = time.monotonic()
                count = sum(len(batch) for batch in loader)
                spent_s = time.monotonic() - start_s
                if rounds >= 0:
                    rates[name].append(count / spent_s)
                    if name == "relaxed":
                        work_s = _work_s(loader) - before_s if work == "cpu" else known_s
                        rates["bound"].append(count * max(workers, 1) / work_s)
            rounds += 1
        per_s = {f"{name}_per_s": statistics.median(values) for name, values in rates.items()}
        of_bound = statistics.median(ours / bound for ours, bound in zip(rates["relaxed"], rates["bound"], strict=True))
        log = loaders["relaxed"].log
        return {
            **per_s,
            "relaxed_of_bound": of_bound,
            "samples": samples,
            "workers": workers,
            "work": work,
            "batch_size": BATCH_SIZE,
            "rounds": rounds,
            "log_bytes_per_sample": log.size_bytes / (samples * len(log.epochs)),
        }


def _work_s(loader: DataLoader) -> float:
    return loader.stats.fetch_cpu_s + loader.stats.finish_cpu_s


class Volumes(Dataset[Any]):
    """The same files and work as torch users would write them: one sample at a time, in a worker process.

    Args:
        path: The Parquet file.
        pipeline: Ops to run on each volume.
    """

    def __init__(self, path: Path, pipeline: Pipeline) -> None:
        self._store = open_store(path)
        self._pipeline = pipeline

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self._pipeline.run(self._store.read(index), Key(0, 0, index)).array)
