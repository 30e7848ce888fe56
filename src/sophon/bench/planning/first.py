"""`sophon bench first`: the first epoch of a new job, compared with its second and with an epoch without cuts.

Nothing is kept between jobs: each loader starts with only built-in knowledge. Loaders take turns, so that other
activity on the machine affects all of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sophon.bench.harness import OnStep, nothing
from sophon.bench.rig.testbed import Testbed, open_testbed

_NAME = "train"
_BATCH = 64


def bench_first(
    folders: Mapping[str, Path],
    link_bytes_per_s: float = 5e6,
    storage_cores: float = 1.0,
    consumer_per_s: float = 2000.0,
    repeats: int = 3,
    on_step: OnStep = nothing,
) -> dict[str, Any]:
    """Return the cost of the first and second epochs, and of an epoch without cuts.

    Args:
        folders: Folders of photos, by name.
        link_bytes_per_s: Rate of the link.
        storage_cores: Number of cores near storage.
        consumer_per_s: Samples per second that the consumer takes.
        repeats: Number of new jobs per folder.
        on_step: Called with the name of the next step.

    Returns:
        ``{NAME: {"first_s", "second_s", "none_s", "samples", "first_of_second", "first_of_none", "first_bytes",
        "second_bytes", "none_bytes", "cuts"}}``: medians over the jobs; the cuts are those of the last job's first
        epoch.
    """
    steps, count = iter(range(1, 1 << 30)), 3 * repeats * len(folders)
    result: dict[str, Any] = {}
    with open_testbed(link_bytes_per_s) as testbed:
        for name, folder in folders.items():
            runs: dict[str, list[dict[str, Any]]] = {"none": [], "first": [], "second": []}
            with testbed.server({_NAME: folder}, storage_cores) as server:
                for seed in range(repeats):
                    told: dict[str, Any] = {
                        "url": server.url(_NAME),
                        "plan": None,
                        "batch_size": _BATCH,
                        "workers": 2,
                        "seed": seed,
                    }
                    do = testbed.trainer.do
                    samples = do("open", name="none", policy="none", **told)
                    do("open", name="job", policy="optimal", **told)
                    for what, loader, epoch in (("none", "none", 0), ("first", "job", 0), ("second", "job", 1)):
                        on_step(f"{name}: {what}", next(steps), count)
                        runs[what].append(_epoch(testbed, do, loader, epoch, consumer_per_s))
                    do("forget")
            result[name] = _row(runs, samples)
    return result


def _epoch(testbed: Testbed, do: Any, loader: str, epoch: int, consumer_per_s: float) -> dict[str, Any]:
    told = {"kind": "stand-in", "samples_per_s": consumer_per_s, "interface": testbed.interface}
    found: dict[str, Any] = do("epoch", name=loader, epoch=epoch, **told)
    return found


def _row(runs: Mapping[str, list[dict[str, Any]]], samples: int) -> dict[str, Any]:
    def median(what: str, count: str) -> float:
        return float(statistics.median(run[count] for run in runs[what]))

    def ratio(above: str, below: str) -> float:
        pairs = zip(runs[above], runs[below], strict=True)
        return float(statistics.median(one["epoch_s"] / other["epoch_s"] for one, other in pairs))

    return {
        "samples": samples,
        **{f"{what}_s": median(what, "epoch_s") for what in runs},
        **{f"{what}_bytes": median(what, "link_bytes") for what in runs},
        "first_of_second": ratio("first", "second"),
        "first_of_none": ratio("first", "none"),
        "cuts": runs["first"][-1]["cuts"],
    }
