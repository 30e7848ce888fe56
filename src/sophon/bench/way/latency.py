"""`sophon bench latency`: the same epoch over links of the same rate and ever longer round trips.

A server on this machine, a long link in user space (`rig.delay_line`), and a loader for each policy and round trip. A
loader plans by a profile that one job has made before, and is told the same epoch everywhere: the samples, their boxes
and, where nothing has changed, their cuts are the same. What it takes to open a data set is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sophon.bench.harness import OnStep, nothing
from sophon.bench.ops import RECIPE
from sophon.bench.rig.delay_line import DelayLine
from sophon.loader.loader import DataLoader
from sophon.loader.local_server import LocalServer
from sophon.loader.options import Planning
from sophon.store import open_store

POLICIES = ("none", "optimal")
ROUND_TRIPS_MS = (0, 10, 30, 100)
_BATCH = 64
_TRIED = 512  # samples of a first epoch, which says how many make a long one
_MARGIN = 1.15  # on the length of an epoch: later ones follow a better plan


def bench_latency(
    folder: Path,
    work: Path,
    link_bytes_per_s: float = 5e6,
    least_s: float = 20.0,
    round_trips_ms: Sequence[int] = ROUND_TRIPS_MS,
    on_step: OnStep = nothing,
) -> dict[str, Any]:
    """Return the seconds of an epoch for each round trip and policy.

    Args:
        folder: Photos, enough of them for epochs of the wanted length: of these each policy uses as many as it takes.
        work: Folder for the profile that jobs share.
        link_bytes_per_s: Rate of the link.
        least_s: How long an epoch lasts at least, if there are photos enough.
        round_trips_ms: What to measure.
        on_step: Told what runs next.

    Returns:
        ``{"rtt_ms": {"0": {"none_s", "optimal_s"}, …}, "spread": {POLICY: …}, "samples": {POLICY: …}}``: the spread is
        the longest of these epochs over the shortest.
    """
    steps, count = iter(range(1, 1 << 30)), len(POLICIES) * (1 + len(round_trips_ms))
    result: dict[str, Any] = {"rtt_ms": {str(rtt): {} for rtt in round_trips_ms}, "spread": {}, "samples": {}}
    profile = work / "profile.parquet"
    with LocalServer(folder, 1) as server:

        def epoch_s(policy: str, rtt_ms: int, samples: int) -> float:
            on_step(f"{policy}, {rtt_ms} ms", next(steps), count)
            with DelayLine(server.port, link_bytes_per_s, rtt_ms / 1e3) as line:
                url = server.url.replace(f":{server.port}/", f":{line.port}/")
                return _epoch_s(url, Planning(policy, profile=profile), samples)

        most = len(open_store(folder))
        for policy in POLICIES:
            tried = min(most, _TRIED)
            # Says how long a sample takes, and leaves a profile.
            sample_s = epoch_s(policy, round_trips_ms[0], tried) / tried
            samples = result["samples"][policy] = min(most, max(tried, int(least_s * _MARGIN / sample_s)))
            for rtt_ms in round_trips_ms:
                result["rtt_ms"][str(rtt_ms)][f"{policy}_s"] = epoch_s(policy, rtt_ms, samples)
            found = [row[f"{policy}_s"] for row in result["rtt_ms"].values()]
            result["spread"][policy] = max(found) / min(found)
    return result


def _epoch_s(url: str, planning: Planning, samples: int) -> float:
    """Return the seconds of one epoch over the first samples."""
    loader = DataLoader(url, RECIPE, batch_size=_BATCH, policy=planning, num_workers="auto", sampler=range(samples))
    loader.set_epoch(1)
    try:
        start_s = time.monotonic()
        for _ in loader:
            pass
        return time.monotonic() - start_s
    finally:
        loader.close()
