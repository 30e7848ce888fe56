"""`sophon bench calls`: a slow user step, compared with torch's DataLoader on the same files.

The step is pure Python and holds the GIL, as custom augmentations do. Both loaders get the same recipe, batch size and
number of workers; whole epochs take turns, in strict order, and the median is reported. Sophon reads local files, and
then from a storage node in another process with ``policy="optimal"``. That node runs on the same cores, so CPU seconds
are counted too, those of the node separately from those of the loader and its workers.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from sophon.bench.harness import OnStep, nothing, one_torch_thread
from sophon.bench.loader import Images
from sophon.bench.torchvision_import import import_torchvision
from sophon.errors import ConfigError
from sophon.loader.loader import DataLoader
from sophon.loader.local_server import LocalServer
from sophon.loader.options import Planning
from sophon.process.children import tree_cpu_s

_BATCH_SIZE = 16
_WARM_UP = 2  # epochs: the first fills the page cache and takes measurements; the second is the first with a plan


class Spin:
    """A pure-Python step that uses a given amount of CPU.

    Args:
        seconds: CPU seconds per sample.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, value: Any) -> Any:
        """Return the value after the delay."""
        end_s = time.thread_time() + self._seconds
        while time.thread_time() < end_s:
            pass
        return value


def bench_calls(
    folder: Path, step_s: float, workers: int, rounds: int, on_step: OnStep | None = None
) -> dict[str, Any]:
    """Measure samples per second of both loaders.

    Args:
        folder: Images, in class folders or not.
        step_s: CPU seconds of the user's own step.
        workers: Worker processes of each loader.
        rounds: Number of timed epochs per loader.
        on_step: Called with the name, number and count of the next step.

    Returns:
        ``{"samples": …, "workers": …, "step_s": …, "per_s": {"torch": …, "local": …, "node": …}, "cpu_s": {"torch":
        {"here": …, "node": …}, …}}``; `cpu_s` is per sample, by the processes that used it.
    """
    report = on_step or nothing
    torchvision = import_torchvision()
    if torchvision is None:
        raise ConfigError("bench calls compares with torchvision, which is not installed; pip install torchvision")
    transforms = torchvision.transforms
    recipe = transforms.Compose([transforms.RandomResizedCrop(224), Spin(step_s), transforms.ToTensor()])
    with one_torch_thread(torch), LocalServer(folder) as server:
        ours: dict[str, Any] = {"shuffle": True, "num_workers": workers, "persistent_workers": True}
        loaders: dict[str, Any] = {
            "torch": TorchDataLoader(Images(folder, recipe), _BATCH_SIZE, **ours),
            "local": DataLoader(folder, recipe, batch_size=_BATCH_SIZE, **ours),
            "node": DataLoader(
                server.url, recipe, batch_size=_BATCH_SIZE, policy=Planning("optimal", profile=False), **ours
            ),
        }
        samples = len(loaders["local"].dataset)
        rates: dict[str, list[float]] = {name: [] for name in loaders}
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in loaders}
        for number in range(_WARM_UP + rounds):
            for name, loader in loaders.items():
                report(name, number, _WARM_UP + rounds)
                before, start_s = _cpu_s(server.pid), time.monotonic()
                for _ in loader:
                    pass
                took_s, after = time.monotonic() - start_s, _cpu_s(server.pid)
                if number >= _WARM_UP:
                    rates[name].append(samples / took_s)
                    spent[name].append(((after[0] - before[0]) / samples, (after[1] - before[1]) / samples))
    return {
        "samples": samples,
        "workers": workers,
        "step_s": step_s,
        "per_s": {name: statistics.median(values) for name, values in rates.items()},
        "cpu_s": {
            name: {"here": statistics.median(row[0] for row in rows), "node": statistics.median(row[1] for row in rows)}
            for name, rows in spent.items()
        },
    }


def _cpu_s(node: int) -> tuple[float, float]:
    """Return the CPU seconds so far of this process with its workers, and of the node, which is also its child."""
    of_node = tree_cpu_s(node)
    return tree_cpu_s(os.getpid()) - of_node, of_node
