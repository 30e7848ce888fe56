"""`sophon bench device`: the work before a batch is copied to a device, with floats made on the host or on the device.

Both loaders read the same local files and produce the same bits. One finishes samples on the host; the other leaves
bytes for the device, which is the CPU unless another device is named. Epochs take turns. The benchmark counts the CPU
time of finishing samples, before the copy, and reports the device's work separately.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch

from sophon.bench.harness import OnStep, nothing, one_torch_thread
from sophon.bench.ops import RECIPE
from sophon.loader.loader import DataLoader
from sophon.loader.options import Output

_BATCH_SIZE = 64
_MIN_ROUNDS = 3


def bench_device(folder: Path, seconds: float, device: str = "cpu", on_step: OnStep = nothing) -> dict[str, Any]:
    """Measure the CPU milliseconds of finishing a sample, with and without a device.

    Args:
        folder: Folder of images, with or without class folders.
        seconds: Time for the whole measurement; at least three epochs per loader.
        device: Device that batches are copied to.
        on_step: Called with the name of the next step.

    Returns:
        ``{"device", "samples", "host": {"finish_ms", "batch_ms", "bytes"}, "device_path": {…}, "saved_ms"}``: for each
        sample, the CPU milliseconds before its batch is complete, the milliseconds of completing and sending it, and
        the bytes that are copied; `saved_ms` is the median over rounds of the difference in `finish_ms`.
    """
    with one_torch_thread(torch):
        outputs = {"host": Output(), "device_path": Output(device=device)}
        loaders = {
            name: DataLoader(folder, RECIPE, batch_size=_BATCH_SIZE, num_workers=0, output=output)
            for name, output in outputs.items()
        }
        samples = len(loaders["host"].dataset)
        rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in loaders}
        end_s, number = time.monotonic() + seconds, 0
        while len(rounds["host"]) < _MIN_ROUNDS or time.monotonic() < end_s:
            on_step(f"round {number}", 0, 0)
            for name, loader in loaders.items():
                spent = _epoch_ms(loader, samples)
                if number > 0:  # the first epoch fills the page cache and builds indexes
                    rounds[name].append(spent)
            number += 1
    rows = {
        name: {
            "finish_ms": statistics.median(finish for finish, _ in found),
            "batch_ms": statistics.median(batch for _, batch in found),
            "bytes": loaders[name].dataset.finishing.result_bytes,
        }
        for name, found in rounds.items()
    }
    pairs = zip(rounds["host"], rounds["device_path"], strict=True)
    saved_ms = statistics.median(host[0] - there[0] for host, there in pairs)
    return {"device": device, "samples": samples, **rows, "saved_ms": saved_ms}


def _epoch_ms(loader: DataLoader, samples: int) -> tuple[float, float]:
    """Return the CPU milliseconds for finishing a sample and for its share of a batch, in one epoch."""
    before = loader.stats.finish_cpu_s, loader.stats.collate_s
    for _ in loader:
        pass
    after = loader.stats.finish_cpu_s, loader.stats.collate_s
    finish_ms, batch_ms = (1e3 * (now - then) / samples for now, then in zip(after, before, strict=True))
    return finish_ms, batch_ms
