"""Measure the cost of Ray: the same nodes, found through Ray or given as a list, in alternating epochs.

One trainer runs the same epochs against nodes run by Ray actors, in turns: connected to Ray, with nodes found through
Ray; not connected, with a list; and with a second loader on the same list, whose difference from the first shows the
effect of chance. The trainer is one process, because two processes differ by a percent or two in their memory layout.
It has its own CPU. CPU seconds of the trainer and the nodes are read from the kernel's CPU clocks; those of raylets,
actors and the head are not counted, because they do not depend on the number of samples.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sophon.bench.cluster.nodes import BATCH, CONSUMER, WORKERS
from sophon.bench.harness import OnStep, nothing
from sophon.bench.planning.relays import repeated
from sophon.bench.rig.processes import RigError, Trainer, cpus_for_two, pinned
from sophon.errors import Error
from sophon.process.children import tree_cpu_s
from sophon.process.scratch import scratch_folder

_PARTS = 2
_LEAST = 1200  # samples in an epoch, which takes more than one CPU second
_ADDRESS = "sophon+ray://train"
_WAYS = ("ray", "list", "chance")


def bench_ray(data: Path, rounds: int = 8, on_step: OnStep = nothing) -> dict[str, Any]:
    """Return CPU seconds per sample with Ray and with a list, and the time to open the data set.

    Returns:
        ``{"overhead", "spread", "rounds", "chance": {"overhead", "spread", "rounds"}, "threads_share",
        "cpu_s_per_sample": {"ray", "list"}, "open_s": {"ray", "registry", "list"}, "again_s": […], "sha256"}``:
        `overhead` is the median over rounds of the ratio of CPU seconds with Ray to the mean of both loaders with a
        list, minus one, and `spread` has its quartiles; `chance` compares a list with a list. `threads_share` is the
        share of Ray's own threads in the trainer's CPU seconds, which can be counted exactly. `again_s` are the seconds
        from the death of a node's process until its successor serves.

    Raises:
        Error: The batches are not the same.
    """
    steps, total = iter(range(1, 1 << 30)), len(_WAYS) * (rounds + 2) + 2
    cpus = cpus_for_two()
    on_step("a Ray cluster", next(steps), total)
    with (
        repeated(data, _LEAST) as folder,
        _host(folder, None if cpus is None else cpus[0]) as host,
        Trainer(cpus=None if cpus is None else cpus[1]) as trainer,
    ):
        urls = {"ray": _ADDRESS, "list": host.facts["urls"], "chance": host.facts["urls"]}
        trainer.do("join_ray", address=host.facts["address"])
        opens, sums, samples = {}, {}, 0
        for name, url in urls.items():
            on_step(f"{name}: opening", next(steps), total)
            _opened(trainer, "warm", url)
            samples, opens[name] = _opened(trainer, name, url)
            sums[name] = trainer.do("digest", name=name, epoch=0)
        _, opens["registry"] = _opened(trainer, "registry", f"{host.facts['registry']}/train")
        if len(set(sums.values())) != 1:
            raise Error(f"the batches are not the same: {sums}")
        trainer.do("leave_ray")
        spent: dict[str, list[float]] = {name: [] for name in _WAYS}
        threads: list[float] = []
        for epoch in range(rounds + 1):
            for name in _rotated(epoch):
                on_step(f"{name}: epoch {epoch}", next(steps), total)
                all_s, threads_s = _epoch_cpu_s(trainer, host, name, epoch + 1)
                spent[name].append(all_s / samples)
                threads += [threads_s / all_s] if name == "ray" else []
        on_step("a killed node", next(steps), total)
        again_s = host.kill_children()
        spent = {name: its[1:] for name, its in spent.items()}  # the first epoch still allocates memory
        return {
            **compared(
                spent["ray"], [statistics.fmean(both) for both in zip(spent["list"], spent["chance"], strict=True)]
            ),
            "chance": compared(spent["chance"], spent["list"]),
            "threads_share": statistics.median(threads),
            "cpu_s_per_sample": {name: statistics.median(spent[name]) for name in ("ray", "list")},
            "open_s": {name: opens[name] for name in ("ray", "registry", "list")},
            "again_s": again_s,
            "sha256": sums["list"],
        }


def _rotated(turn: int) -> tuple[str, ...]:
    at = turn % len(_WAYS)
    return _WAYS[at:] + _WAYS[:at]


def _epoch_cpu_s(trainer: Trainer, host: _Host, name: str, epoch: int) -> tuple[float, float]:
    """Return the CPU seconds of the trainer and the nodes in an epoch, and those of Ray's threads among them."""
    trainer.do("join_ray", address=host.facts["address"])
    if name != "ray":  # connecting and disconnecting leaves cold caches, which all cases should have
        trainer.do("leave_ray")
    before_s = host.cpu_s()
    row = trainer.do("epoch", name=name, epoch=epoch, interface=None, **CONSUMER)
    nodes_s = host.cpu_s() - before_s
    if name == "ray":
        trainer.do("leave_ray")
    return float(row["trainer_cpu_s"]) + nodes_s, float(row["ray_cpu_s"])


def compared(ones: list[float], others: list[float]) -> dict[str, Any]:
    """Return by which share `ones` exceed `others`, round by round: the median, the quartiles and all shares."""
    ratios = [one / other - 1 for one, other in zip(ones, others, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {"overhead": middle, "spread": [low, high], "rounds": ratios}


def _opened(trainer: Trainer, name: str, url: str | list[str]) -> tuple[int, float]:
    """Open a data set; return its number of samples and how long opening took."""
    start_s = time.monotonic()
    how: dict[str, Any] = {"recipe": "pil", "policy": "none", "batch_size": BATCH, "workers": WORKERS, "seed": 0}
    samples: int = trainer.do("open_recipe", name=name, url=url, **how)
    return samples, time.monotonic() - start_s


class _Host:
    """A Ray cluster with nodes on it, as a process that takes commands; `facts` describe it."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log
        self.facts = self._told()

    def cpu_s(self) -> float:
        """CPU seconds that the nodes' processes have used so far."""
        return sum(map(tree_cpu_s, self.facts["pids"]))

    def kill_children(self) -> list[float]:
        """Kill the nodes' processes one after another; return the seconds until each successor serves."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"kill\n")
        self._process.stdin.flush()
        return list(map(float, self._told()["again_s"]))

    def _told(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        told = next((line for line in iter(self._process.stdout.readline, b"") if line.startswith(b"{")), None)
        if told is None:
            raise RigError(f"the Ray cluster has ended: {self._log.read_text(errors='replace')[-1000:]}")
        found: dict[str, Any] = json.loads(told)
        return found


@contextmanager
def _host(data: Path, cpus: list[int] | None) -> Iterator[_Host]:
    """Run a Ray cluster with nodes on it."""
    with scratch_folder("ray") as folder:
        log = Path(folder, "log")
        module = [sys.executable, "-m", "sophon.bench.cluster.ray_host"]
        command = [*pinned(cpus), *module, str(folder), str(data.absolute()), str(_PARTS)]
        with (
            log.open("wb") as output,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output) as process,
        ):
            try:
                yield _Host(process, log)
            finally:
                assert process.stdin is not None
                process.stdin.close()
                process.wait()
