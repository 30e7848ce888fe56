"""The whole evaluation: data, profile, policies, figures, one JSON object."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from sophon.bench.harness import OnStep, nothing
from sophon.bench.paper import figures
from sophon.bench.paper.datasets import PaperData, prepare, source_of
from sophon.bench.paper.published import PAPER
from sophon.bench.paper.race import Race
from sophon.bench.paper.scenario import FIGURE_4_CORES, LIKES, Scenario
from sophon.bench.rig.testbed import Testbed, open_testbed
from sophon.process.scratch import scratch_folder
from sophon.profile.table import Profile
from sophon.units import format_rate

_BOTH = frozenset({"1b", "1c", "3"})  # figures that cover both data sets


def bench_paper(scenario: Scenario, on_step: OnStep | None = None) -> dict[str, Any]:
    """Run a scenario and return the result that `schema.md` describes.

    Args:
        scenario: The scenario to run.
        on_step: Called with the name, number and count of the next step.

    Raises:
        BitsError: Two policies fed the model different tensors.
    """
    with (
        scratch_folder("paper") as folder,
        open_testbed(scenario.link_bytes_per_s, scenario.shape) as testbed,
    ):
        try:
            return _Evaluation(scenario, testbed, Path(folder), on_step or nothing).run()
        finally:
            if scenario.keep is not None:
                _keep(Path(folder), scenario.keep)


class _Evaluation:
    def __init__(self, scenario: Scenario, testbed: Testbed, work: Path, on_step: OnStep) -> None:
        self._scenario = scenario
        self._testbed = testbed
        self._work = work
        self._on_step = on_step
        self._done = 0
        self._count = _epochs(scenario)
        self._data: dict[str, PaperData] = {}
        self._profiles: dict[str, Profile] = {}

    def run(self) -> dict[str, Any]:
        scenario = self._scenario
        likes = [scenario.like]
        if _BOTH & set(scenario.figures):
            likes += [like for like in LIKES if like != scenario.like]
        for like in likes:
            self._prepare(like)
        data = self._data[scenario.like]
        result: dict[str, Any] = {
            "format": "bench-paper",
            "version": 1,
            "data": data.words,
            "like": data.like,
            "made_up": data.made_up,
            "samples": data.samples,
            "mean_file_bytes": data.mean_file_bytes,
            **self._testbed.facts.to_json(),
            "storage_cores": scenario.storage_cores,
            "trainer_cores": 1.0,
            "consumer": self._consumer(),
            **{name: getattr(scenario, name) for name in ("batch_size", "workers", "repeats", "seed", "epoch")},
            "machine": _machine(),
            **self._race(scenario.like).run(scenario.storage_cores, automatic=scenario.automatic),
            "paper": PAPER,
        }
        result["figures"] = {name: self._figure(name, result) for name in scenario.figures}
        return result

    def _prepare(self, like: str) -> None:
        scenario = self._scenario
        made_up = source_of(scenario, like) is None
        self._on_step(f"{like}: {'making photos' if made_up else 'files'}", self._done, self._count)
        self._data[like] = prepare(
            scenario,
            like,
            self._work,
            lambda done, of: self._on_step(f"{like}: photo {done} of {of}", self._done, self._count),
        )
        path = self._work / f"{like}.profile"
        self._testbed.trainer.do(
            "profile",
            lambda done, of: self._on_step(f"{like}: profile {done} of {of}", self._done, self._count),
            path=str(self._data[like].folder),
            save=str(path),
            seed=scenario.seed,
            epoch=scenario.epoch,
        )
        self._profiles[like] = Profile.load(path)

    def _race(self, like: str, scenario: Scenario | None = None) -> Race:
        return Race(
            self._testbed, scenario or self._scenario, self._data[like], self._profiles[like], self._work, self._next
        )

    def _next(self, what: str) -> None:
        self._on_step(what, self._done, self._count)
        self._done += 1

    def _figure(self, name: str, result: dict[str, Any]) -> dict[str, Any]:
        scenario, like = self._scenario, self._scenario.like
        if name == "1a":
            return figures.figure_1a(self._data[like], scenario.seed, scenario.epoch)
        if name == "1b":
            return figures.figure_1b(self._profiles)
        if name == "1c":
            return figures.figure_1c(self._profiles)
        if name == "1d":
            facts = self._testbed.facts
            return figures.figure_1d(
                lambda speed: self._race(like, replace(scenario, consumer_samples_per_s=speed)),
                self._profiles[like],
                facts.link_bytes_per_s,
                facts.goodput_bytes_per_s,
                scenario.repeats,
            )
        if name == "3":
            return self._figure_3(result)
        return figures.figure_4(self._race(like), self._data[like], FIGURE_4_CORES, scenario.repeats)

    def _figure_3(self, result: dict[str, Any]) -> dict[str, Any]:
        datasets = {}
        for like, data in self._data.items():
            have_it = like == self._scenario.like and self._scenario.storage_cores == 1
            ran = result if have_it else self._race(like).run(1.0)
            datasets[like] = {
                "data": data.words,
                "samples": data.samples,
                "mean_file_bytes": data.mean_file_bytes,
                "policies": ran["policies"],
                "gains": ran["gains"],
            }
        return {"storage_cores": 1.0, "datasets": datasets, "paper": PAPER}

    def _consumer(self) -> dict[str, Any]:
        scenario = self._scenario
        if scenario.consumer_samples_per_s is not None:
            speed, words = scenario.consumer_samples_per_s, "a stand-in accelerator that sleeps"
        else:
            speed = self._testbed.trainer.do("cnn_speed", batch_size=scenario.batch_size)
            words = "a small network trained on the trainer's CPU"
        return {"kind": scenario.consumer, "samples_per_s": speed, "words": f"{words}: {format_rate(speed)}"}


def _epochs(scenario: Scenario) -> int:
    """Return how many epochs will be run, for a progress bar."""
    one = 1 + len(scenario.policies) * (1 + scenario.repeats)
    two = 1 + 2 * (1 + scenario.repeats)
    count = one + (1 + scenario.repeats if scenario.automatic else 0)
    if "1d" in scenario.figures:
        count += len(figures.MODELS) * two
    if "3" in scenario.figures:
        count += one if scenario.storage_cores == 1 else 2 * one
    if "4" in scenario.figures:
        count += len(FIGURE_4_CORES) * one
    return count


def _machine() -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {
        "cpu": model,
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _keep(work: Path, keep: Path) -> None:
    keep.mkdir(parents=True, exist_ok=True)
    for path in [*work.glob("*.profile"), *work.glob("*.plan")]:
        shutil.copy2(path, keep / f"{path.stem}.{path.suffix[1:]}.parquet")
