"""The scenario of `sophon demo`: a small network is trained from a real server over a slow link, policy by policy.

Everything is real except the link, which is the server's own token bucket (`sophon serve --limit`), so that neither
root nor a second machine is needed. One epoch is measured; then every policy trains the same network, from the same
seed, on the same epochs. Since all policies give the same bits, all networks end up identical: the losses are compared
to the last bit, and so are digests of all inputs.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sophon.bench.harness import one_torch_thread
from sophon.bench.ops import RECIPE
from sophon.loader.loader import DataLoader
from sophon.loader.local_server import LocalServer
from sophon.loader.options import Planning
from sophon.loader.planning.shared import MEASURED
from sophon.plan.plan import make_plan
from sophon.units import format_rate

DEMO_POLICIES = ("none", "all", "resize", "sophon", "optimal")
_BATCH_SIZE = 32
_CHANNELS = 16

OnBatch = Callable[[str, int, int, str], None]
"""Called with the name of the run, the number of samples done, the total, and a short message."""


@dataclass(frozen=True)
class DemoSettings:
    """Settings of the demo.

    Args:
        folder: The images, in class folders.
        work: Where the profile is kept.
        link_bytes_per_s: Speed of the link.
        epochs: Epochs per policy.
        policies: Names of the policies, `none` first.
        data: Description of the images.
        like: Which of the paper's data sets the images resemble.
    """

    folder: Path
    work: Path
    link_bytes_per_s: float
    epochs: int = 2
    policies: tuple[str, ...] = DEMO_POLICIES
    data: str = ""
    like: str = "openimages"


def run_demo(settings: DemoSettings, on_batch: OnBatch) -> dict[str, Any]:
    """Train with every policy; return the result as `sophon bench paper` writes it, and the losses.

    Args:
        settings: Settings of the demo.
        on_batch: Called after every batch.
    """
    profile_path = settings.work / "profile.parquet"
    limit = ("--limit", f"{settings.link_bytes_per_s:.0f}B/s")
    with one_torch_thread(torch), LocalServer(settings.folder, 1, options=limit) as server:

        def loader_for(policy: str) -> DataLoader:
            planning = Planning(policy, profile=profile_path if policy in MEASURED else None)
            return DataLoader(server.url, RECIPE, batch_size=_BATCH_SIZE, shuffle=True, num_workers=1, policy=planning)

        first = loader_for("optimal")
        _Training(first, settings.epochs).epoch(0, "measuring", on_batch)
        rows = {}
        for policy in settings.policies:
            loader = loader_for(policy)
            training = _Training(loader, settings.epochs)
            for epoch in range(1, settings.epochs + 1):
                training.epoch(epoch, policy, on_batch)
            rows[policy] = training.row()
            if policy == "optimal":
                first = loader
    profile, resources = first.profile, first.resources
    assert profile is not None
    assert resources is not None
    for policy, row in rows.items():
        prediction = make_plan(profile, resources, policy).prediction
        row |= {"predicted_s": prediction.epoch_s, "bottleneck": prediction.bottleneck}
    bits = {row["sha256"] for row in rows.values()} | {repr(row["losses"]) for row in rows.values()}
    return {
        "format": "bench-paper",
        "version": 1,
        "data": settings.data,
        "like": settings.like,
        "samples": len(profile),
        "shaped_by": "server",
        "link_bytes_per_s": settings.link_bytes_per_s,
        "storage_cores": 1.0,
        "trainer_cores": resources.trainer_cores,
        "consumer": {
            "kind": "cnn",
            "samples_per_s": resources.consumer_samples_per_s,
            "words": f"a small CNN on this machine's CPU: {format_rate(resources.consumer_samples_per_s)}",
        },
        "batch_size": _BATCH_SIZE,
        "workers": 1,
        "repeats": settings.epochs,
        "policies": rows,
        "identical": len(bits) == 2,
        "gains": {
            policy: {
                "traffic": rows["none"]["link_bytes"] / row["link_bytes"],
                "time": rows["none"]["epoch_s"] / row["epoch_s"],
            }
            for policy, row in rows.items()
        },
    }


class _Training:
    """One policy's network, with the same seed as all others."""

    def __init__(self, loader: DataLoader, epochs: int) -> None:
        torch.manual_seed(0)
        self._loader = loader
        classes = max(len(loader.dataset.classes), 2)
        self._net = nn.Sequential(
            nn.Conv2d(3, _CHANNELS, 8, stride=8),
            nn.ReLU(),
            nn.Conv2d(_CHANNELS, 2 * _CHANNELS, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(2 * _CHANNELS, classes),
        )
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=0.05, momentum=0.9)
        self._digest = hashlib.sha256()
        self._epochs = epochs
        self._seconds: list[float] = []
        self._losses: list[float] = []
        self._before = dict(loader.stats.to_dict())

    def epoch(self, epoch: int, name: str, on_batch: OnBatch) -> None:
        loader, stats = self._loader, self._loader.stats
        count = len(loader.dataset)
        loader.set_epoch(epoch)
        start_s, done, sent_bytes = time.monotonic(), 0, stats.link_bytes
        total = torch.zeros(())
        for batch in loader:
            images, labels = batch if isinstance(batch, list | tuple) else (batch, torch.zeros(len(batch)).long())
            self._digest.update(images.numpy().tobytes() + labels.numpy().tobytes())
            loss = nn.functional.cross_entropy(self._net(images), labels)
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            self._optimizer.step()
            total += loss.detach() * len(images)
            done += len(images)
            words = f"epoch {max(epoch, 1)}/{self._epochs}, loss {loss.item():.3f}, "
            words += f"{(stats.link_bytes - sent_bytes) / 1e6:.1f} MB"
            on_batch(name, done, count, words)
        self._seconds.append(time.monotonic() - start_s)
        self._losses.append(total.item() / count)

    def row(self) -> dict[str, Any]:
        """Return a policy's figures per epoch, as `sophon bench paper` writes them."""
        stats, before, epochs = self._loader.stats.to_dict(), self._before, len(self._seconds)

        def each(name: str) -> float:
            return float(stats[name] - before[name]) / epochs

        waited_s, consumer_s = each("waited_s"), each("consumer_s")
        return {
            "link_bytes": each("link_bytes"),
            "interface_bytes": None,
            "epoch_s": statistics.median(self._seconds),
            "epoch_s_all": self._seconds,
            "storage_cpu_s": each("storage_cpu_s"),
            "trainer_cpu_s": each("finish_cpu_s"),
            "idle_share": waited_s / max(waited_s + consumer_s, 1e-9),
            "sha256": self._digest.hexdigest(),
            "losses": self._losses,
            "cuts": {cut: round(number / epochs) for cut, number in stats["cuts"].items()},
            "smaller_cuts": stats["smaller_cuts"],
        }
