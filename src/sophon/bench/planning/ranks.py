"""`sophon bench ranks`: several training processes on one link, compared with one that has the link to itself.

Ranks are separate processes that know about each other only from torchrun's environment. Each measures its first epoch
and plans the following ones. Each plan's prediction is compared with the measured epoch, and the time until the last
rank is done is compared with the time that a single rank takes for all samples.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sophon.bench.harness import OnStep, nothing
from sophon.bench.rig.processes import Trainer
from sophon.bench.rig.testbed import Testbed, open_testbed

RANKS = (1, 2, 4)
_NAME = "train"
_LOADER = "rank"
_BATCH = 64  # over all ranks together, as in one training step
_CONSUMER = {"kind": "stand-in", "samples_per_s": 4000.0}  # faster than any link here


def bench_ranks(
    data: Path,
    counts: Sequence[int] = RANKS,
    link_bytes_per_s: float = 5e6,
    epochs: int = 2,
    storage_cores: float = 1.0,
    on_step: OnStep = nothing,
) -> dict[str, Any]:
    """Return predicted and measured epochs for each number of ranks.

    Args:
        data: Folder of photos.
        counts: Numbers of ranks; later ones are compared with the first.
        link_bytes_per_s: Rate of the link.
        epochs: Planned epochs, after the first, which measures.
        storage_cores: Number of cores near storage.
        on_step: Called with the name of the next step.

    Returns:
        ``{"rig": …, "ranks": {"2": {"samples", "first_epoch_s", "epoch_s", "of_first", "worst_error", "epochs": [{
        "epoch_s", "link_bytes", "predicted_s", "took_s", "planned", "cuts"}]}}}``; the last four have one entry per
        rank, and `planned` is the complete prediction of the rank's plan with the resources that it assumed. The
        `epoch_s` of a row is the median of its planned epochs, each until its last rank was done; `of_first` is its
        ratio to that of the first row; `worst_error` is the largest |predicted / took - 1| of any rank in any of these
        epochs.
    """
    steps, count = iter(range(1, 1 << 30)), len(counts) * (1 + epochs)
    rows: dict[str, Any] = {}
    with open_testbed(link_bytes_per_s) as testbed:
        for size in counts:
            with testbed.server({_NAME: data}, storage_cores) as server, testbed.ranks(size) as trainers:
                told: dict[str, Any] = {"name": _LOADER, "url": server.url(_NAME), "plan": None}
                told |= {"batch_size": max(_BATCH // size, 1), "workers": 2, "seed": 0}
                samples = [trainer.do("open", **told) for trainer in trainers]
                runs = []
                for epoch in range(1 + epochs):
                    on_step(f"{size} ranks: epoch {epoch}", next(steps), count)
                    runs.append(_epoch(testbed, trainers, epoch))
            rows[str(size)] = _row(runs, samples[0])
        first = next(iter(rows.values()))["epoch_s"]
        for row in rows.values():
            row["of_first"] = row["epoch_s"] / first
        return {"rig": testbed.facts.to_json(), "ranks": rows}


def _epoch(testbed: Testbed, trainers: Sequence[Trainer], epoch: int) -> list[dict[str, Any]]:
    """Run an epoch on all ranks at the same time."""
    with ThreadPoolExecutor(len(trainers)) as pool:
        told: dict[str, Any] = {"name": _LOADER, "epoch": epoch, "interface": testbed.interface, **_CONSUMER}
        return list(pool.map(lambda trainer: trainer.do("epoch", **told), trainers))


def _row(runs: Sequence[Sequence[dict[str, Any]]], samples: int) -> dict[str, Any]:
    epochs = [
        {
            "epoch_s": max(run["epoch_s"] for run in ranks),
            "took_s": [run["epoch_s"] for run in ranks],
            "predicted_s": [run["predicted_s"] for run in ranks],
            "planned": [run["planned"] for run in ranks],
            "link_bytes": sum(run["link_bytes"] for run in ranks),
            "cuts": [run["cuts"] for run in ranks],
        }
        for ranks in runs
    ]
    planned = epochs[1:]
    errors = [
        abs(predicted / took - 1)
        for epoch in planned
        for predicted, took in zip(epoch["predicted_s"], epoch["took_s"], strict=True)
    ]
    return {
        "samples": samples,
        "first_epoch_s": epochs[0]["epoch_s"],
        "epoch_s": statistics.median(epoch["epoch_s"] for epoch in planned),
        "worst_error": max(errors),
        "epochs": epochs,
    }
