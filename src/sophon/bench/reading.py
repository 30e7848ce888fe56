"""`sophon bench reading`: samples from a store whose reads take 50 ms each, compared with reading them one by one.

A loader reads raw and cut samples, in local mode and from a node on loopback. The pictures are small, so neither the
link nor the cores are the bottleneck: the verdict must name the store.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sophon.bench.harness import OnStep, nothing
from sophon.bench.rig.slow_store import READ_S, slow_folders
from sophon.loader.loader import DataLoader
from sophon.loader.local_server import LocalServer
from sophon.pipeline import Pipeline, ops
from sophon.process.scratch import scratch_folder
from sophon.store import open_store

SAMPLES = 1_000
CUTS = ("none", "0:window")
_SIDE = 64
_IN_TURN = 20
_RECIPE = Pipeline([ops.Decode(), ops.RandomResizedCrop(32), ops.ToTensor()])
_PLUGIN = "sophon.bench.rig.slow_store_plugin"


def bench_reading(samples: int = SAMPLES, workers: int = 2, on_step: OnStep | None = None) -> dict[str, Any]:
    """Measure samples per second of a loader whose store is slow.

    Args:
        samples: Number of samples in the data set.
        workers: Number of workers of the loader.
        on_step: Called with the name, number and count of the next step.

    Returns:
        ``{"read_s", "samples", "in_turn_per_s", "rows": [{"where", "cuts", "samples_per_s", "speedup", "verdict"}]}``
    """
    report = on_step or nothing
    rows: list[dict[str, Any]] = []
    steps = 2 * len(CUTS) + 1
    with scratch_folder("reading") as folder, slow_folders():
        report("pictures", 0, steps)
        path = _write_pictures(Path(folder, "data"), samples)
        in_turn_per_s = _in_turn(path, min(_IN_TURN, samples))
        options = ("--cache-dir", str(folder), "--import", _PLUGIN)
        with LocalServer(path, cores=1, options=options) as server:
            for where, data in (("local", str(path)), ("node", server.url)):
                for cuts in CUTS:
                    report(f"{where}, {cuts}", len(rows) + 1, steps)
                    rows.append({"where": where, "cuts": cuts} | _epoch(data, cuts, workers, in_turn_per_s))
    return {"read_s": READ_S, "samples": samples, "in_turn_per_s": in_turn_per_s, "rows": rows}


def _write_pictures(folder: Path, count: int) -> Path:
    rng = np.random.default_rng(0)
    for number in range(count):
        path = folder / str(number % 10) / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (_SIDE, _SIDE, 3), np.uint8)).save(path, quality=80)
    return folder


def _in_turn(path: Path, count: int) -> float:
    """Return how many samples per second are read one by one."""
    with open_store(path) as store:
        start_s = time.monotonic()
        for index in range(count):
            store.read(index)
        return count / (time.monotonic() - start_s)


def _epoch(data: str, cuts: str, workers: int, in_turn_per_s: float) -> dict[str, Any]:
    loader = DataLoader(data, _RECIPE, batch_size=50, shuffle=True, num_workers=workers, policy=cuts)
    start_s = time.monotonic()
    batches = sum(1 for _ in loader)
    wall_s = time.monotonic() - start_s
    assert batches == len(loader)
    verdict = loader.verdict
    per_s = loader.stats.samples / wall_s
    return {
        "samples_per_s": per_s,
        "speedup": per_s / in_turn_per_s,
        "verdict": None if verdict is None else verdict.bound,
        "rates": None if verdict is None else verdict.to_json(),
    }
