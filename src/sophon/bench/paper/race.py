"""All policies on one data set, in turns: plan, run, count."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sophon.bench.paper.calibration import calibrated
from sophon.bench.paper.datasets import PaperData
from sophon.bench.paper.scenario import Scenario
from sophon.bench.rig.processes import Server
from sophon.bench.rig.testbed import Testbed
from sophon.errors import Error
from sophon.loader.order.order import epoch_order
from sophon.plan.plan import Plan, make_plan
from sophon.plan.policies import Options, reserve_for
from sophon.plan.resources import Resources
from sophon.profile.table import Profile

OnStep = Callable[[str], None]
_NAME = "data"
_AUTOMATIC = "automatic"


class BitsError(Error):
    """Raised when two policies feed the model different tensors."""


class Race:
    """The policies of a scenario on one data set with a number of storage cores.

    Args:
        testbed: The rig to run on.
        scenario: The scenario.
        data: The files.
        profile: Profile of these files, measured while nothing else ran.
        work: Folder for plans.
        on_step: Called with the name of the next epoch.
    """

    def __init__(
        self, testbed: Testbed, scenario: Scenario, data: PaperData, profile: Profile, work: Path, on_step: OnStep
    ) -> None:
        self._testbed = testbed
        self._trainer = testbed.trainer
        self._scenario = scenario
        self._data = data
        self._profile = profile
        self._work = work
        self._on_step = on_step

    def run(
        self,
        storage_cores: float,
        *,
        policies: tuple[str, ...] | None = None,
        repeats: int | None = None,
        automatic: bool = False,
    ) -> dict[str, Any]:
        """Return each policy's results, and what they have in common.

        Args:
            storage_cores: Number of cores near storage.
            policies: Policies to run; by default those of the scenario.
            repeats: Timed epochs per policy; by default as in the scenario.
            automatic: Whether to also run a loader with its default behaviour: it measures its first epoch and makes
                its own plan.
        """
        scenario = self._scenario
        policies, repeats = policies or scenario.policies, repeats or scenario.repeats
        with self._testbed.server({_NAME: self._data.folder}, storage_cores) as server:
            self._step("warming up", storage_cores)
            profile, resources = self._calibrate(server, storage_cores)
            options = Options(reserve=reserve_for(storage_cores))
            order = epoch_order(len(profile), scenario.seed, scenario.epoch, shuffle=True)
            plans = {name: make_plan(profile, resources, name, options, order) for name in policies}
            digests = {}
            for name, plan in plans.items():
                self._step(f"{name}: bits", storage_cores)
                self._open(name, server, plan, storage_cores)
                # This epoch is also the warm-up: a file's index is built on first use.
                digests[name] = self._trainer.do("digest", name=name, epoch=scenario.epoch)
            if automatic:
                self._step("automatic: first epoch", storage_cores)
                self._open(_AUTOMATIC, server, None, storage_cores)
                digests[_AUTOMATIC] = self._trainer.do("digest", name=_AUTOMATIC, epoch=scenario.epoch)
            _require_equal(digests)
            rows: dict[str, list[dict[str, Any]]] = {name: [] for name in digests}
            for number in range(repeats):
                for name in digests:
                    self._step(f"{name}: {number + 1} of {repeats}", storage_cores)
                    rows[name].append(self._epoch(name, server))
            made = self._made_plan(storage_cores) if automatic else None
        results = {name: _result(rows[name], plan, digests[name]) for name, plan in plans.items()}
        return {
            "policies": results,
            "automatic": None if made is None else _result(rows[_AUTOMATIC], made, digests[_AUTOMATIC]),
            "identical": True,
            "gains": gains(results),
            "calibration": profile.provenance["calibrated"],
        }

    def _step(self, what: str, storage_cores: float) -> None:
        self._on_step(f"{self._data.like}, {storage_cores:g} core: {what}")

    def _calibrate(self, server: Server, storage_cores: float) -> tuple[Profile, Resources]:
        scenario = self._scenario
        speed = scenario.consumer_samples_per_s
        profile, sending_s_per_byte = calibrated(
            self._profile,
            self._trainer,
            server,
            server.url(_NAME),
            seed=scenario.seed,
            epoch=scenario.epoch,
            storage=storage_cores > 0,
        )
        if speed is None:  # the network and the ops share the trainer's core
            step_s = 1.0 / self._trainer.do("cnn_speed", batch_size=scenario.batch_size)
            profile = replace(profile, trainer_s=profile.trainer_s + np.float32(step_s))
        goodput = self._testbed.facts.goodput_bytes_per_s
        given = (goodput, storage_cores, 1.0, math.inf if speed is None else speed)
        return profile, Resources(*given, sending_s_per_byte=sending_s_per_byte)

    def _path(self, name: str, storage_cores: float) -> Path:
        return self._work / f"{self._data.like}-{storage_cores:g}-{name}.plan"

    def _made_plan(self, storage_cores: float) -> Plan:
        path = self._path(_AUTOMATIC, storage_cores)
        self._trainer.do("save_plan", name=_AUTOMATIC, path=str(path))
        return Plan.load(path)

    def _open(self, name: str, server: Server, plan: Plan | None, storage_cores: float) -> None:
        path = self._path(name, storage_cores)
        if plan is not None:
            plan.save(path)
        self._trainer.do(
            "open",
            name=name,
            url=server.url(_NAME),
            plan=None if plan is None else str(path),
            batch_size=self._scenario.batch_size,
            workers=self._scenario.workers,
            seed=self._scenario.seed,
        )

    def _epoch(self, name: str, server: Server) -> dict[str, Any]:
        before_s = server.cpu_s()
        row: dict[str, Any] = self._trainer.do(
            "epoch",
            name=name,
            epoch=self._scenario.epoch,
            kind=self._scenario.consumer,
            samples_per_s=self._scenario.consumer_samples_per_s,
            interface=self._testbed.interface,
        )
        return {**row, "server_cpu_s": server.cpu_s() - before_s}


def _require_equal(digests: dict[str, str]) -> None:
    if len(set(digests.values())) > 1:
        listed = ", ".join(f"{name} {digest[:12]}" for name, digest in digests.items())
        raise BitsError(f"the policies fed the model different tensors: {listed}; please report this with your data")


def _result(rows: list[dict[str, Any]], plan: Plan, digest: str) -> dict[str, Any]:
    def median(name: str) -> Any:
        return None if rows[0][name] is None else statistics.median(row[name] for row in rows)

    said = plan.prediction.to_json()
    return {
        "link_bytes": round(median("link_bytes")),
        "interface_bytes": median("interface_bytes"),
        "epoch_s": median("epoch_s"),
        "epoch_s_all": [row["epoch_s"] for row in rows],
        "predicted_s": said["epoch_s"],
        "bottleneck": said["bottleneck"],
        "storage_cpu_s": median("server_cpu_s"),
        "trainer_cpu_s": median("trainer_cpu_s"),
        "idle_share": median("idle_share"),
        "sha256": digest,
        "reported_storage_cpu_s": median("storage_cpu_s"),
        "finish_cpu_s": median("finish_cpu_s"),
        "predicted": {
            **{f"{label}_s": seconds for label, seconds in said["busy_s"].items()},
            **said["used"],
        },
        "cuts": rows[-1]["cuts"],
        "smaller_cuts": round(median("smaller_cuts")),
        "reason": plan.reason,
    }


def gains(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the factors by which each policy takes fewer bytes and seconds than `none`."""
    none = results["none"]
    return {
        name: {"traffic": none["link_bytes"] / row["link_bytes"], "time": none["epoch_s"] / row["epoch_s"]}
        for name, row in results.items()
    }
