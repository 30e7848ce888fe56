"""`sophon bench loader`: our loader in local mode compared with torch's DataLoader and torchvision, on the same files.

Both get the same recipe, batch size and number of workers; whole epochs take turns, and the median is reported.
torch's workers are kept alive between epochs, so that starting them does not count. CPU time is that of the process and
its workers; its ratio is the median over pairs of epochs, one of each loader, which varies less than the times
themselves.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from sophon.bench.harness import OnStep, nothing, one_torch_thread
from sophon.bench.ops import MEAN, RECIPE, STD
from sophon.bench.torchvision_import import import_torchvision
from sophon.errors import ConfigError
from sophon.loader.loader import DataLoader
from sophon.process.children import children_of, tree_cpu_s
from sophon.store import open_store

WORKERS = (0, 1, 2)
_BATCH_SIZE = 64
_MIN_ROUNDS = 3


def bench_loader(folder: Path, seconds: float, on_step: OnStep | None = None) -> dict[str, Any]:
    """Measure samples per second of both loaders with 0, 1 and 2 workers.

    Args:
        folder: Images, in class folders or not.
        seconds: Time for the whole measurement; at least three epochs of each.
        on_step: Called with the name, number and count of the next step.

    Returns:
        ``{"workers": {"0": {"sophon_per_s", "torch_per_s", "sophon_cpu_ms", "torch_cpu_ms", "cpu_ratio"}, …},
        "samples": …}``: samples per second, and CPU milliseconds per sample.
    """
    report = on_step or nothing
    torchvision = import_torchvision()
    if torchvision is None:
        raise ConfigError(
            "bench loader compares with torchvision, which is not installed here; pip install torchvision"
        )
    transforms = torchvision.transforms
    recipe = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    result: dict[str, Any] = {"workers": {}, "samples": 0}
    with one_torch_thread(torch):
        for number, workers in enumerate(WORKERS):
            report(f"{workers} workers", number, len(WORKERS))
            ours = DataLoader(folder, RECIPE, batch_size=_BATCH_SIZE, shuffle=True, num_workers=workers)
            theirs = TorchDataLoader(
                Images(folder, recipe),
                batch_size=_BATCH_SIZE,
                shuffle=True,
                num_workers=workers,
                persistent_workers=workers > 0,
            )
            result["samples"] = len(ours.dataset)
            row = _race({"sophon": ours, "torch": theirs}, len(ours.dataset), seconds / len(WORKERS))
            result["workers"][str(workers)] = row
    return result


def _race(loaders: dict[str, Any], samples: int, seconds: float) -> dict[str, float]:
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    cpu_ms: dict[str, list[float]] = {name: [] for name in loaders}
    end_s = time.monotonic() + seconds
    first = True
    while first or len(rates["torch"]) < _MIN_ROUNDS or time.monotonic() < end_s:
        for name, loader in loaders.items():
            start_s, start_cpu_s = time.monotonic(), _cpu_s()
            for _ in loader:
                pass
            if not first:  # the first epoch fills the page cache and starts workers
                rates[name].append(samples / (time.monotonic() - start_s))
                cpu_ms[name].append(1e3 * (_cpu_s() - start_cpu_s) / samples)
        first = False
    pairs = zip(cpu_ms["sophon"], cpu_ms["torch"], strict=True)
    return {
        **{f"{name}_per_s": statistics.median(values) for name, values in rates.items()},
        **{f"{name}_cpu_ms": statistics.median(values) for name, values in cpu_ms.items()},
        "cpu_ratio": statistics.median(ours / theirs for ours, theirs in pairs),
    }


def _cpu_s() -> float:
    """Return the CPU seconds of this process and its workers; those of workers are counted in the kernel's ticks."""
    return time.process_time() + sum(tree_cpu_s(child) for child in children_of(os.getpid()))


class Images(Dataset[Any]):
    """The files of a folder as torchvision users load them: like ImageFolder, with labels if there are any.

    Args:
        folder: Folder of the files.
        transform: Transform of each image.
    """

    def __init__(self, folder: Path, transform: Any) -> None:
        manifest = open_store(folder).manifest
        self._paths = [str(folder / name) for name in manifest.ids.to_pylist()]
        self._labels = None if manifest.labels is None else manifest.labels.tolist()
        self._transform = transform

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Any:
        with Path(self._paths[index]).open("rb") as file:
            picture = Image.open(file).convert("RGB")
        value = self._transform(picture)
        return value if self._labels is None else (value, self._labels[index])
