"""`sophon bench segmentation`: SpeedyLoader's experiment with offline and online preprocessing of 3-D scans.

The study trains a 3D U-Net on KiTS19 in batches of 4 and does all of MLPerf's preprocessing during training. The number
of slices varies so much that a few samples take many times longer than the others, and with torch's DataLoader the GPU
is idle 85 % of the time. The study's loader takes 30 % less time and uses the GPU 4.3 times as much.

Here torch's DataLoader with worker processes, and ours with as many workers in strict and in relaxed order, take turns
on the same synthetic scans, epoch by epoch. The consumer sleeps for each batch, long enough to be busy for 15 % of
torch's time, as in the study. No loader with this CPU cost can beat the bound, which is the longest of three times, all
measured in the same epochs: the CPU seconds of the samples divided by the number of workers; those of the whole
process, including reading, divided by the number of cores; and the consumer's time.

torch's samples are made the way its users write them: the whole scan is decoded, resampled and normalised, and then
cropped. Our loader processes only the part that the crop needs.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from sophon.bench.harness import OnStep, nothing, one_torch_thread
from sophon.bench.scans.scan_folder import OPTIONS, write_scans
from sophon.loader.loader import DataLoader
from sophon.loader.sources.prefix_cache import Cache
from sophon.pipeline import Key, Pipeline, ops
from sophon.process.cores import cores_here
from sophon.process.scratch import scratch_folder
from sophon.store import open_store

BATCH_SIZE = 4  # as in the study
SAMPLES = 120  # KiTS19 has 210; with fewer than 100, an epoch takes a second, a tenth of which is start and end
SIDE = 192  # voxels along each side of a slice; KiTS19 has 512, but then an epoch would take minutes
CROP = (64, 64, 64)
BUSY_SHARE = 0.15  # busy share of the consumer with torch's loader: the study's GPU is idle for 85 %
PAPER = {"less_time": 0.30, "more_use": 4.3, "torch_idle_share": 0.85}
_ROUNDS = 3
_ORDERS = ("strict", "relaxed")


def recipe(crop: tuple[int, int, int] = CROP) -> Pipeline:
    """Return MLPerf's recipe for a 3D U-Net on KiTS19."""
    return Pipeline(
        [
            ops.DecodeVolume(label="label", foreground="foreground"),
            ops.ResampleVolume((1.6, 1.2, 1.2)),
            ops.NormalizeVolume(),
            ops.RandomBalancedCrop(crop),
            ops.RandomFlipVolume(),
            ops.CastVolume(),
            ops.RandomBrightnessVolume(),
            ops.RandomNoiseVolume(),
        ]
    )


def bench_segmentation(
    samples: int = SAMPLES,
    workers: int = 2,
    side: int = SIDE,
    rounds: int = _ROUNDS,
    data: Path | None = None,
    on_step: OnStep = nothing,
) -> dict[str, Any]:
    """Measure the seconds per epoch and the consumer's idle share for torch's loader and ours.

    Args:
        samples: Number of scans.
        workers: Number of workers of each loader.
        side: Width and height of a slice in voxels.
        rounds: Timed epochs per loader, after one warm-up epoch.
        data: Scans made by `sophon synth --like kits19`; generated if not given.
        on_step: Called with the name of the next step, its number and the number of steps.

    Returns:
        ``{"torch_s", "strict_s", "relaxed_s", "bound_s", "idle_share": {…}, …}``
    """
    pipeline = recipe()
    with scratch_folder("segmentation") as folder, one_torch_thread(torch):
        on_step("scans", 0, 1)
        if data is None:
            data = write_scans(Path(folder, "scans"), samples, side=side).folder
        path = f"{data}?{OPTIONS}"
        sizes = _sizes(path)
        result = _race(path, pipeline, workers, rounds, on_step)
        on_step("cached prefix", rounds, rounds + 1)
        kept = _kept(path, pipeline, Path(folder, "cache"))
    return {
        **result,
        **kept,
        "samples": len(sizes),
        "slices": [min(slices for slices, _ in sizes), max(slices for slices, _ in sizes)],
        "side": max(side for _, side in sizes),
        "crop": list(CROP),
        "workers": workers,
        "batch_size": BATCH_SIZE,
        "paper": PAPER,
    }


def _sizes(path: str) -> list[tuple[int, int]]:
    """Return the number of slices and the side of each scan."""
    decode = ops.DecodeVolume()
    with open_store(path) as store:
        single = store.narrowed(())
        sizes = [decode.open(single.read(index)).image.header.sizes for index in range(len(store))]
    return [(slices, side) for slices, side, _ in sizes]


def _race(path: str, pipeline: Pipeline, workers: int, rounds: int, on_step: OnStep) -> dict[str, Any]:
    common: dict[str, Any] = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": workers}
    loaders: dict[str, Any] = {
        "torch": TorchDataLoader(Scans(path, pipeline), persistent_workers=workers > 0, **common),
        **{order: DataLoader(path, pipeline, order=order, **common) for order in _ORDERS},
    }
    seconds: dict[str, list[float]] = {name: [] for name in (*loaders, "bound")}
    idle: dict[str, list[float]] = {name: [] for name in loaders}
    step_s = 0.0
    for number in range(-1, rounds):  # the first epoch fills the page cache, starts workers and finds slow samples
        for name, loader in loaders.items():
            on_step(f"epoch {number + 1} of {name}", max(number, 0), rounds + 1)
            before_s = _work_s(loader) if name == "relaxed" else 0.0
            start_s, cpu_s = time.monotonic(), time.process_time()
            waited_s, batches = _consume(loader, step_s)
            spent_s, cpu_s = time.monotonic() - start_s, time.process_time() - cpu_s
            if number < 0 and name == "torch":
                step_s = BUSY_SHARE * spent_s / batches
            if number >= 0:
                seconds[name].append(spent_s)
                idle[name].append(waited_s / spent_s)
                if name == "relaxed":
                    bound_s = (_work_s(loader) - before_s) / max(workers, 1)
                    seconds["bound"].append(max(bound_s, cpu_s / cores_here(), batches * step_s))
    of_bound = [bound / ours for bound, ours in zip(seconds["bound"], seconds["relaxed"], strict=True)]
    for order in _ORDERS:
        loaders[order].close()
    return {
        **{f"{name}_s": statistics.median(values) for name, values in seconds.items()},
        "idle_share": {name: statistics.median(values) for name, values in idle.items()},
        "relaxed_of_bound": statistics.median(of_bound),
        "consumer_s": step_s,
    }


def _consume(loader: Any, step_s: float) -> tuple[float, int]:
    """Consume the batches of an epoch; return the time spent waiting for them and their number."""
    waited_s, batches = 0.0, 0
    batch_of = iter(loader)
    while True:
        start_s = time.monotonic()
        if next(batch_of, None) is None:
            return waited_s + time.monotonic() - start_s, batches
        waited_s += time.monotonic() - start_s
        batches += 1
        time.sleep(step_s)


def _kept(path: str, pipeline: Pipeline, folder: Path) -> dict[str, float]:
    """Return the CPU seconds of an epoch that caches the results of the ops before the crop, and of the next epoch."""
    spent = []
    with DataLoader(path, pipeline, batch_size=BATCH_SIZE, cache=Cache(folder=folder, most_bytes=1 << 40)) as loader:
        before_s = _work_s(loader)
        for _ in range(2):
            for _ in loader:
                pass
            spent.append(_work_s(loader) - before_s)
            before_s = _work_s(loader)
    return {"first_cpu_s": spent[0], "kept_cpu_s": spent[1]}


def _work_s(loader: DataLoader) -> float:
    return loader.stats.fetch_cpu_s + loader.stats.finish_cpu_s


class Scans(Dataset[Any]):
    """The same work on the same files, written as a torch user would: one sample at a time, in a worker process.

    Args:
        path: Folder with the scans.
        pipeline: Ops to run on each scan.
    """

    def __init__(self, path: str, pipeline: Pipeline) -> None:
        self._store = open_store(path)
        self._pipeline = pipeline

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, index: int) -> Any:
        made = self._pipeline.run(self._store.read(index), Key(0, 0, index))
        return {"image": torch.from_numpy(made.array), "label": torch.from_numpy(made.label)}
