"""Measure the cost of Ray: the same nodes, found through Ray or given as a list, in alternating epochs.

Two trainers, one connected to Ray and one not, run the same epochs against nodes kept by Ray actors. The CPU seconds of
the trainer and the nodes are counted; the CPU use of raylets, actors and the head is reported separately, per second,
because it does not depend on the number of samples.
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
from sophon.bench.rig.processes import RigError, Trainer
from sophon.errors import Error
from sophon.process.children import tree_cpu_s
from sophon.process.scratch import scratch_folder

_PARTS = 2
_LEAST = 2400  # samples in an epoch: with 240, which take 0.3 CPU seconds, single rounds differed by 20 %
_ADDRESS = "sophon+ray://train"


def bench_ray(data: Path, rounds: int = 5, on_step: OnStep = nothing) -> dict[str, Any]:
    """Return CPU seconds per sample with Ray and with a list, and the time to open the data set.

    Returns:
        ``{"overhead", "cpu_s_per_sample": {"ray", "list"}, "open_s": {"ray", "registry", "list"}, "sha256"}``:
        `overhead` is the median over rounds of their ratio, minus one.

    Raises:
        Error: The batches are not the same.
    """
    steps, total = iter(range(1, 1 << 30)), 2 * rounds + 3
    on_step("a Ray cluster", next(steps), total)
    with repeated(data, _LEAST) as folder, _host(folder) as host, Trainer() as with_ray, Trainer() as with_list:
        with_ray.do("join_ray", address=host["address"])
        trainers = {"ray": (with_ray, _ADDRESS), "list": (with_list, host["urls"])}
        opens, sums = {}, {}
        samples = 0
        for name, (trainer, url) in trainers.items():
            on_step(f"{name}: opening", next(steps), total)
            samples, _ = _opened(trainer, "warm", url)
            samples, opens[name] = _opened(trainer, name, url)
            sums[name] = trainer.do("digest", name=name, epoch=0)
        _, opens["registry"] = _opened(with_list, "registry", f"{host['registry']}/train")
        if len(set(sums.values())) != 1:
            raise Error(f"the batches are not the same: {sums}")
        spent: dict[str, list[float]] = {"ray": [], "list": []}
        for epoch in range(1, rounds + 1):
            for name, (trainer, _) in trainers.items():
                on_step(f"{name}: epoch {epoch}", next(steps), total)
                before_s = sum(map(tree_cpu_s, host["pids"]))
                row = trainer.do("epoch", name=name, epoch=epoch, interface=None, **CONSUMER)
                nodes_s = sum(map(tree_cpu_s, host["pids"])) - before_s
                spent[name].append((row["trainer_cpu_s"] + nodes_s) / samples)
        ratios = [one / other - 1 for one, other in zip(spent["ray"], spent["list"], strict=True)]
        each = {name: statistics.median(its) for name, its in spent.items()}
        return {
            "overhead": statistics.median(ratios),
            "rounds": ratios,
            "cpu_s_per_sample": each,
            "open_s": opens,
            "sha256": sums["list"],
        }


def _opened(trainer: Trainer, name: str, url: str | list[str]) -> tuple[int, float]:
    """Open a data set; return its number of samples and the time it took."""
    start_s = time.monotonic()
    how: dict[str, Any] = {"recipe": "pil", "policy": "none", "batch_size": BATCH, "workers": WORKERS, "seed": 0}
    samples: int = trainer.do("open_recipe", name=name, url=url, **how)
    return samples, time.monotonic() - start_s


@contextmanager
def _host(data: Path) -> Iterator[dict[str, Any]]:
    """Run a Ray cluster with nodes on it; yield its description."""
    with scratch_folder("ray") as folder:
        log = Path(folder, "log")
        command = [
            sys.executable,
            "-m",
            "sophon.bench.cluster.ray_host",
            str(folder),
            str(data.absolute()),
            str(_PARTS),
        ]
        with (
            log.open("wb") as output,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output) as process,
        ):
            try:
                assert process.stdout is not None
                told = next((line for line in iter(process.stdout.readline, b"") if line.startswith(b"{")), None)
                if told is None:
                    raise RigError(f"the Ray cluster did not start: {log.read_text(errors='replace')[-1000:]}")
                yield json.loads(told)
            finally:
                assert process.stdin is not None
                process.stdin.close()
                process.wait()
