"""`sophon bench recipes`: recipes as users write them, with and without offloading, over a shaped link.

Two loaders with the same seed run in turns in the trainer's process: one with policy "none", and one that measures its
first epoch and then plans. Bits are compared, and the second epoch is timed.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sophon.bench.harness import OnStep, nothing
from sophon.bench.presets import RECIPES, recipe_named
from sophon.bench.rig.testbed import open_testbed

_NAME = "train"
_POLICIES = ("none", "optimal")
_EPOCH = 1  # the second, since the first one measures


def bench_recipes(
    data: Path,
    names: Sequence[str] = tuple(RECIPES),
    link_bytes_per_s: float = 5e6,
    repeats: int = 3,
    storage_cores: float = 1.0,
    on_step: OnStep = nothing,
) -> dict[str, Any]:
    """Return bytes and seconds of the second epoch of each recipe, with and without offloading.

    Args:
        data: Folder of photos.
        names: Which of RECIPES to run.
        link_bytes_per_s: Rate of the link.
        repeats: Timed epochs per loader.
        storage_cores: Number of cores near storage.
        on_step: Called with the name of the next step.
    """
    for name in names:
        recipe_named(name)
    steps, count = iter(range(1, 1 << 30)), len(names) * len(_POLICIES) * (2 + repeats)
    rows: dict[str, Any] = {}
    with open_testbed(link_bytes_per_s) as testbed:
        trainer = testbed.trainer
        for name in names:
            with testbed.server({_NAME: data}, storage_cores) as server:
                bits: dict[str, list[str]] = {policy: [] for policy in _POLICIES}
                runs: dict[str, list[dict[str, Any]]] = {policy: [] for policy in _POLICIES}
                for policy in _POLICIES:
                    on_step(f"{name}, {policy}: first epoch", next(steps), count)
                    told: dict[str, Any] = {"name": policy, "url": server.url(_NAME), "recipe": name, "policy": policy}
                    samples = trainer.do("open_recipe", **told, batch_size=32, workers=2, seed=0)
                    bits[policy].append(trainer.do("digest", name=policy, epoch=_EPOCH - 1))
                for number in range(repeats):
                    for policy in _POLICIES:
                        on_step(f"{name}, {policy}: {number + 1} of {repeats}", next(steps), count)
                        how: dict[str, Any] = {
                            "kind": "stand-in",
                            "samples_per_s": 2000.0,
                            "interface": testbed.interface,
                        }
                        runs[policy].append(trainer.do("epoch", name=policy, epoch=_EPOCH, **how))
                for policy in _POLICIES:
                    on_step(f"{name}, {policy}: bits", next(steps), count)
                    bits[policy].append(trainer.do("digest", name=policy, epoch=_EPOCH))
            rows[name] = _row(runs, bits, samples)
        return {"rig": testbed.facts.to_json(), "recipes": rows}


def _row(runs: dict[str, list[dict[str, Any]]], bits: dict[str, list[str]], samples: int) -> dict[str, Any]:
    def median(policy: str, what: str) -> float:
        return float(statistics.median(run[what] for run in runs[policy]))

    row: dict[str, Any] = {"samples": samples, "same_bits": bits["none"] == bits["optimal"]}
    for policy in _POLICIES:
        row[policy] = {what: median(policy, what) for what in ("link_bytes", "epoch_s", "trainer_cpu_s")}
        row[policy]["epoch_s_all"] = [run["epoch_s"] for run in runs[policy]]
    row["cuts"] = runs["optimal"][-1]["cuts"]
    row["bytes_ratio"] = row["optimal"]["link_bytes"] / row["none"]["link_bytes"]
    row["time_ratio"] = row["optimal"]["epoch_s"] / row["none"]["epoch_s"]
    return row
