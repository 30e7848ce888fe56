"""The scenario ``plan``: seconds and memory that planning takes, up to ten million samples.

Every measurement runs in a separate process, on one core, to get its own peak memory. The peak is that of the whole
process (interpreter, libraries, the profile itself and the plan); the profile is generated block by block straight into
its tables, so generating it adds only one block. Seconds are those of the policy only.

With more than three resources the samples are on several nodes: with four resources, two nodes each have a link and
share their cores; with eight, three nodes each have a link and cores, and share the trainer's link.

Concurrency: one child process at a time, pinned to one core if the system supports it.
Limits: the peak is `VmHWM` on Linux; elsewhere it is `ru_maxrss`, which on some systems includes the parent's.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sophon.codec.route import Route
from sophon.errors import ConfigError, Error
from sophon.plan.cost import predict
from sophon.plan.policies import DEFAULTS, policy
from sophon.plan.resources import Node, Resources
from sophon.profile.table import Profile
from sophon.units import parse_bytes

SAMPLES = (1_000_000, 3_000_000, 10_000_000)
POLICY_NAMES = ("optimal", "sophon")
CUTS = tuple(map(Route.parse, ("0:raw", "0:window", "1:raw", "2:raw", "2:webp", "2:zstd", "3:raw", "5:raw")))
# With these, all resources are limiting in the best plan: the hardest case.
RESOURCES = Resources(link_bytes_per_s=1.25e9, storage_cores=16, trainer_cores=48)
PROBLEMS = {
    3: RESOURCES,
    4: Resources(
        storage_cores=20.4,
        trainer_cores=41.5,
        nodes=[Node("a", {"link_bytes_per_s": 581e6}), Node("b", {"link_bytes_per_s": 420e6})],
    ),
    8: Resources(
        link_bytes_per_s=1.31e9,
        trainer_cores=50.5,
        nodes=[
            Node("a", {"link_bytes_per_s": 515e6, "storage_cores": 1.03}),
            Node("b", {"link_bytes_per_s": 465e6, "storage_cores": 1.63}),
            Node("c", {"link_bytes_per_s": 345e6, "storage_cores": 5.81}),
        ],
    ),
}
"""Resources to plan with, by how many of them the routes use."""

_BLOCK = 2**16
_SEED = 4  # arbitrary, but fixed, so that every run plans the same


def synthetic(samples: int, seed: int = _SEED, parts: int = 1) -> Profile:
    """Return a profile like that of OpenImages (DESIGN 5): spread of sizes, CPU seconds and codec gains.

    Args:
        samples: Number of samples.
        seed: Seed of the generator; the same seed gives the same profile.
        parts: Number of nodes that the samples are spread over, in turn.
    """
    tables = [np.empty((samples, len(CUTS)), np.float32, order="F") for _ in range(3)]
    rng = np.random.Generator(np.random.Philox(seed))
    for low in range(0, samples, _BLOCK):
        high = min(samples, low + _BLOCK)
        for table, columns in zip(tables, _block(rng, high - low), strict=True):
            for column, values in enumerate(columns):
                table[low:high, column] = values
    payload, storage, trainer = tables
    name = f"synthetic-{seed}-{samples}"
    of_part = None if parts == 1 else (np.arange(samples) % parts).astype(np.uint16)
    return Profile(CUTS, payload, storage, trainer, pipeline="synthetic", dataset=name, resize_k=2, parts=of_part)


def _block(rng: np.random.Generator, n: int) -> tuple[list[Any], list[Any], list[Any]]:
    raw = 270e3 * np.exp(0.6 * rng.standard_normal(n, np.float32))  # mean 323 KB
    decode = 2.2e-8 * raw * (0.8 + 0.4 * rng.random(n, np.float32))  # mean 7.1 ms
    resize = 1e-3 + 3.2e-3 * rng.random(n, np.float32)  # mean 2.6 ms
    area = 0.15 + 0.75 * rng.random(n, np.float32)  # share of the picture in the crop
    lossless = 0.25 + 0.45 * rng.random(n, np.float32)  # WebP's gain: 70 KB of 150,528
    noise = 0.9 + 0.2 * rng.random((4, n), np.float32)
    crop, tensor, finish = 150_528.0, 602_112.0, 4e-4
    done = decode + resize
    payload = [raw, raw * area, raw * 8, crop, crop * lossless, crop * (lossless + 0.2), crop, tensor]
    storage = [
        0.0,
        2.2e-3 * area * noise[0],
        decode,
        done,
        done + 2.3e-3 * noise[1],
        done + 1.2e-3 * noise[2],
        done + 2e-5,
        done + finish,
    ]
    trainer = [
        done + finish,
        decode * area + resize + finish,
        resize + finish,
        finish,
        finish + 1e-3 * noise[3],
        finish + 1e-4 * noise[3],
        finish - 2e-5,
        2e-5,
    ]
    return payload, storage, trainer


def run(
    samples: Sequence[int] = SAMPLES,
    policies: Sequence[str] = POLICY_NAMES,
    progress: Callable[[str], None] = lambda _: None,
    resources: int = 3,
) -> dict[str, list[dict[str, Any]]]:
    """Measure every policy at every size.

    Args:
        samples: The numbers of samples.
        policies: Names of the policies.
        progress: Called with one line before each measurement.
        resources: Number of resources, a key of `PROBLEMS`.

    Returns:
        Per policy one row per size: samples, seconds, peak_bytes, cpu_seconds, profile_bytes, epoch_s and bound_s.
    """
    if resources not in PROBLEMS:
        raise ConfigError(
            f"there is no problem with {resources} resources; choose one of {', '.join(map(str, PROBLEMS))}."
        )
    rows: dict[str, list[dict[str, Any]]] = {}
    for name in policies:
        policy(name)
        rows[name] = []
        for count in samples:
            if count < 1:
                raise ConfigError(f"expected one or more samples, got {count}.")
            progress(f"{name}: {count:,} samples × {len(CUTS)} cuts, {resources} resources")
            rows[name].append(_in_child(name, count, resources))
    return rows


def _in_child(name: str, samples: int, resources: int) -> dict[str, Any]:
    # A fresh interpreter finds the package as this one did, installed or not.
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-m", "sophon.bench.planning.plan", name, str(samples), str(resources)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Error(
            f"planning {samples:,} samples with {name} ended with code {done.returncode}: "
            f"{done.stderr.strip()[-400:]} Free some memory or give fewer --samples."
        )
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def measure(name: str, samples: int, resources: int = 3) -> dict[str, Any]:
    """Plan in this process, pinned to one core, and return the row of `run`."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    given = PROBLEMS[resources]
    profile = synthetic(samples, parts=max(len(given.nodes), 1))
    choose = policy(name)
    wall, cpu = time.perf_counter(), time.process_time()
    choice = choose(profile, given, DEFAULTS)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = peak_bytes()
    return {
        "samples": samples,
        "resources": resources,
        "seconds": wall,
        "peak_bytes": peak,
        "cpu_seconds": cpu,
        "profile_bytes": sum(table.nbytes for table in profile.measures.values()),
        "epoch_s": predict(profile, choice.cut, given).epoch_s,
        "bound_s": choice.bound_s,
    }


def peak_bytes() -> int:
    """Return the peak resident memory of this process."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return parse_bytes(f"{line.split()[1]}KiB")  # the kernel writes kB and means KiB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return parse_bytes(f"{peak}{'B' if sys.platform == 'darwin' else 'KiB'}")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(sys.argv[1], *map(int, sys.argv[2:]))))
