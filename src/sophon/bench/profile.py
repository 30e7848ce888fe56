"""`sophon bench profile`: the cost of profiling a first epoch.

A real server runs on loopback with no limit on the link, so that the trainer's CPU is the bottleneck and no cost is
hidden. Three loaders take turns, a whole first epoch each: one does not profile, one only times ops, and one profiles
as by default, with a share of the samples in various codecs.
"""

from __future__ import annotations

import resource
import statistics
import time
from pathlib import Path
from typing import Any

from sophon.bench.harness import OnStep, nothing
from sophon.bench.ops import RECIPE
from sophon.loader.loader import DataLoader
from sophon.loader.local_server import LocalServer
from sophon.loader.options import Planning
from sophon.profile.explore import DEFAULT_SHARE

_BATCH_SIZE = 64
_MIN_ROUNDS = 3
_WAYS = {
    "plain": Planning("none"),
    "timing": Planning("optimal", profile=False, share=0.0),
    "profiling": Planning("optimal", profile=False),
}


def bench_profile(
    folder: Path, seconds: float, share: float = DEFAULT_SHARE, on_step: OnStep | None = None
) -> dict[str, Any]:
    """Measure first epochs with and without profiling.

    Args:
        folder: Images.
        seconds: Approximate duration; at least three rounds.
        share: Share of the samples that are sent in various codecs.
        on_step: Called with the name, number and count of the next step.

    Returns:
        ``{"samples", "share", "plain_s", "timing_s", "profiling_s", "plain_cpu_s", …, "timing_overhead",
        "profiling_overhead"}``: medians of epoch seconds and of the trainer's CPU seconds; overhead is the median, over
        rounds, of the ratio of epoch seconds, minus one.
    """
    report = on_step or nothing
    epochs: dict[str, list[float]] = {name: [] for name in _WAYS}
    cpu: dict[str, list[float]] = {name: [] for name in _WAYS}
    with LocalServer(folder, 1) as server:
        end_s = time.monotonic() + seconds
        rounds = 0
        # The first round opens the connection, fills the page cache and builds window indexes.
        while rounds <= _MIN_ROUNDS or time.monotonic() < end_s:
            for name in _turn(rounds):
                report(f"round {rounds}: {name}", rounds, _MIN_ROUNDS)
                policy = _WAYS[name]
                if name == "profiling":
                    policy = Planning("optimal", profile=False, share=share)
                loader = DataLoader(
                    server.url, RECIPE, batch_size=_BATCH_SIZE, shuffle=True, num_workers=1, policy=policy
                )
                epoch_s, cpu_s = _epoch(loader)
                if rounds:
                    epochs[name].append(epoch_s)
                    cpu[name].append(cpu_s)
            rounds += 1
        result: dict[str, Any] = {"samples": len(loader.dataset), "share": share}
    for name in _WAYS:
        result[f"{name}_s"] = statistics.median(epochs[name])
        result[f"{name}_cpu_s"] = statistics.median(cpu[name])
    for name in ("timing", "profiling"):
        pairs = zip(epochs[name], epochs["plain"], strict=True)
        result[f"{name}_overhead"] = statistics.median(ours / plain for ours, plain in pairs) - 1
    return result


def _turn(number: int) -> list[str]:
    names = list(_WAYS)
    at = number % len(names)
    return names[at:] + names[:at]


def _epoch(loader: DataLoader) -> tuple[float, float]:
    start_s, start_cpu_s = time.monotonic(), _cpu_s()
    for _ in loader:
        pass
    return time.monotonic() - start_s, _cpu_s() - start_cpu_s


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
