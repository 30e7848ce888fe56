"""The trainer process: reads commands as lines of JSON, runs epochs with the real loader and counts.

See `sophon.bench.rig.processes.Trainer` for the other side and the form of the lines.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sophon.bench.ops import RECIPE
from sophon.bench.presets import recipe_named
from sophon.bench.rig import goodput
from sophon.bench.rig.commands import answer, say
from sophon.bench.rig.consumer import Consumer, cnn_speed, consumer_of
from sophon.codec.cut import Cut
from sophon.loader.dataset import RemoteDataset
from sophon.loader.loader import DataLoader
from sophon.loader.options import Planning
from sophon.pipeline import Key
from sophon.plan.plan import Plan
from sophon.profile.columns import cuts_to_profile
from sophon.profile.measure import measure
from sophon.store import open_store

# Besides the raw ones. Codecs on whole decoded pictures or on floats are slow and never smaller than these.
_CUTS = (Cut(0, "window"), Cut(2, "webp"), Cut(2, "zstd"))
_ROUNDS = 3
_TIMEOUT_S = 600.0  # at a tenth of a core and a slow link a request takes long
_COUNTS = ("samples", "link_bytes", "smaller_cuts", "retries", "finish_cpu_s", "storage_cpu_s", "waited_s")


class Trainer:
    """The commands of the process: every public method is one."""

    def __init__(self) -> None:
        self._loaders: dict[str, DataLoader] = {}
        self._datasets: dict[tuple[str, str], RemoteDataset] = {}
        self._ray_threads: set[int] = set()

    def hello(self) -> str:
        """Report that the process is ready."""
        torch.set_num_threads(1)
        return "hello"

    def open(
        self, name: str, url: str, plan: str | None, batch_size: int, workers: int, seed: int, policy: str = "optimal"
    ) -> int:
        """Make a loader with the cuts of a plan, or with a policy that has no profile from an earlier job.

        Returns:
            The number of samples.
        """
        planning = Planning(policy, profile=False) if plan is None else Planning(Path(plan))
        self._loaders[name] = DataLoader(
            url, RECIPE, batch_size=batch_size, shuffle=True, num_workers=workers, seed=seed, policy=planning
        )
        return len(self._loaders[name].dataset)

    def open_recipe(
        self, name: str, url: str | list[str], recipe: str, policy: str, batch_size: int, workers: int, seed: int
    ) -> int:
        """Make a loader for a recipe as users write it; return the number of samples."""
        self._loaders[name] = DataLoader(
            url,
            recipe_named(recipe),
            batch_size=batch_size,
            shuffle=True,
            num_workers=workers,
            seed=seed,
            policy=Planning(policy, profile=False),
        )
        return len(self._loaders[name].dataset)

    def join_ray(self, address: str) -> None:
        """Connect this process to a Ray cluster."""
        import ray

        before = _threads()
        ray.init(address=address, log_to_driver=False, logging_level="error")
        self._ray_threads = _threads() - before

    def leave_ray(self) -> None:
        """Disconnect from Ray; loaders that found their nodes through Ray still know them."""
        import ray

        ray.shutdown()
        self._ray_threads = set()

    def save_plan(self, name: str, path: str) -> None:
        """Save the plan that a loader has made on its own."""
        plan = self._loaders[name].plan
        if plan is None:
            raise RuntimeError("the loader has made no plan")
        plan.save(path)

    def forget(self) -> None:
        """Drop all loaders, data sets and their connections."""
        for dataset in [*self._datasets.values(), *(loader.dataset for loader in self._loaders.values())]:
            for source in dataset.sources:
                source.close()
        self._datasets.clear()
        self._loaders.clear()

    def digest(self, name: str, epoch: int) -> str:
        """Run an epoch and return the sha256 of all its batches: tensors and labels, in order."""
        digest = hashlib.sha256()
        loader = self._loaders[name]
        loader.set_epoch(epoch)
        for batch in loader:
            for part in _tensors(batch):
                digest.update(f"{tuple(part.shape)}{part.dtype}".encode())
                digest.update(np.ascontiguousarray(part.numpy()).data)
        return digest.hexdigest()

    def epoch(
        self, name: str, epoch: int, kind: str, samples_per_s: float | None, interface: str | None
    ) -> dict[str, Any]:
        """Run an epoch and return its counts."""
        loader, consumer = self._loaders[name], consumer_of(kind, samples_per_s)
        before, before_bytes = loader.stats.to_dict(), _received_bytes(interface)
        ray_cpu_s = _threads_cpu_s(self._ray_threads)
        cpu_s, start_s = time.process_time(), time.monotonic()
        loader.set_epoch(epoch)
        plan = _consume(loader, consumer)
        bound_s = None if loader.plan is None else loader.plan.prediction.bound_s
        epoch_s, cpu_s = time.monotonic() - start_s, time.process_time() - cpu_s
        after, after_bytes = loader.stats.to_dict(), _received_bytes(interface)
        counts = {count: after[count] - before[count] for count in _COUNTS}
        return {
            **counts,
            "epoch_s": epoch_s,
            "predicted_s": None if plan is None else plan.prediction.epoch_s,
            "planned": None if plan is None else {**plan.prediction.to_json(), "resources": plan.resources.to_json()},
            "bound_s": bound_s,
            "trainer_cpu_s": cpu_s,
            "ray_cpu_s": _threads_cpu_s(self._ray_threads) - ray_cpu_s,
            "idle_share": max(0.0, 1.0 - consumer.busy_s / epoch_s),
            "interface_bytes": None if before_bytes is None or after_bytes is None else after_bytes - before_bytes,
            "cuts": dict(Counter(after["cuts"]) - Counter(before["cuts"])),
        }

    def goodput(self, host: str, port: int, seconds: float) -> float:
        """Receive from a bare TCP sender; return bytes per second."""
        return goodput.receive(host, port, seconds)

    def cnn_speed(self, batch_size: int) -> float:
        """Return the samples per second of the small network on this CPU."""
        return cnn_speed(batch_size)

    def spend(self, url: str, cut: str, samples: list[int], seed: int, epoch: int) -> dict[str, Any]:
        """Fetch and finish samples at a cut; return bytes and CPU seconds on both sides, for samples with that cut."""
        dataset = self._datasets.get((url, cut))
        if dataset is None:
            dataset = self._datasets[url, cut] = RemoteDataset(url, RECIPE, seed=seed, policy=cut)
        asked = Cut.parse(cut)
        rows: list[tuple[int, float, float] | None] = [None] * len(samples)
        cpu_s = time.process_time()
        for reply in dataset.transport.fetch(dataset.samples.request(epoch, samples), _TIMEOUT_S):
            start_s = time.thread_time()
            made = dataset.finishing.make(reply, Key(seed, epoch, samples[reply.position]))
            if made.error is not None:
                raise made.error
            if reply.cut == asked:
                rows[reply.position] = (len(reply.payload), reply.cpu_s, time.thread_time() - start_s)
        cpu_s = time.process_time() - cpu_s
        return {"rows": rows, "cpu_s": cpu_s}

    def profile(self, path: str, save: str, seed: int, epoch: int) -> None:
        """Measure every sample of a folder at the useful cuts, several times, on this CPU."""
        store = open_store(path)
        done = itertools.count(1)
        cuts = [cut for cut in cuts_to_profile(RECIPE) if cut.codec == "raw" or cut in _CUTS]
        count = (_ROUNDS + 1) * len(store)
        # The first round builds the index of every file; only steady epochs count.
        profiles = [
            measure(store, RECIPE, seed=seed, epoch=epoch, cuts=cuts, on_step=lambda: _progress(next(done), count))
            for _ in range(_ROUNDS + 1)
        ]
        # A plan prefers cheap samples, and a lucky measurement would make a sample look cheap: hence the median.
        storage_s, trainer_s = (
            np.median([getattr(profile, name) for profile in profiles[1:]], axis=0).astype(np.float32)
            for name in ("storage_s", "trainer_s")
        )
        replace(profiles[-1], storage_s=storage_s, trainer_s=trainer_s).save(save)


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors of a batch, including those in lists of views and in targets."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, dict):
        yield from _tensors(list(batch.values()))
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from _tensors(part)


def _consume(loader: DataLoader, consumer: Consumer) -> Plan | None:
    """Take all batches; return the plan that the epoch began with, if there was one."""
    plan = None
    for number, batch in enumerate(loader):
        if number == 0:
            plan = loader.plan
        consumer.take(batch)
    return plan


def _threads() -> set[int]:
    """Return the ids of this process's threads."""
    tasks = Path("/proc/self/task")
    return {int(path.name) for path in tasks.iterdir()} if tasks.exists() else set()


def _threads_cpu_s(threads: set[int]) -> float:
    """Return the CPU seconds that threads of this process have used, if they still run."""
    spent_ns = 0
    for thread in threads:
        with contextlib.suppress(OSError):
            spent_ns += int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0])
    return spent_ns / 1e9


def _received_bytes(interface: str | None) -> int | None:
    path = Path(f"/sys/class/net/{interface}/statistics/rx_bytes")
    return int(path.read_text()) if interface is not None and path.exists() else None


def _progress(done: int, count: int) -> None:
    if done % 8 == 0 or done == count:
        say({"progress": [done, count]})


def main() -> None:
    """Answer until the input ends."""
    answer(Trainer())


if __name__ == "__main__":
    main()
