"""`sophon bench latency`: the same epoch over links of the same rate and increasing round-trip times.

The benchmark runs a server on this machine, a simulated long link (`rig.delay_line`), and one loader per policy and
round trip. All loaders plan with a profile made by an earlier job and run the same epoch, with the same samples and
boxes and, unless something has changed, the same cuts. Not counted are the time to open a data set, and a first epoch
of the same length, in which the node indexes the files: that would look like latency.
"""

from __future__ import annotations

import shutil
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
_TRIED = 512  # samples of a short epoch, used to choose the length of the long one
_TRIALS = {"none": 1, "optimal": 2}  # number of short epochs: the first records a profile, the second follows a plan
_MARGIN = 1.15  # factor on the length of an epoch: later epochs follow a better plan


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
        folder: Folder with enough photos for epochs of the wanted length; each policy uses as many as it needs.
        work: Folder for the profile that jobs share.
        link_bytes_per_s: Rate of the link.
        least_s: Minimum length of an epoch, if there are enough photos.
        round_trips_ms: Round-trip times to measure.
        on_step: Called with the name of the next step.

    Returns:
        ``{"rtt_ms": {"0": {"none_s", "optimal_s"}, …}, "spread": {POLICY: …}, "samples": {POLICY: …}}``: the spread is
            the ratio of the longest of these epochs to the shortest.
    """
    steps, count = iter(range(1, 1 << 30)), len(POLICIES) * (1 + len(round_trips_ms)) + sum(_TRIALS.values())
    result: dict[str, Any] = {"rtt_ms": {str(rtt): {} for rtt in round_trips_ms}, "spread": {}, "samples": {}}
    profile = work / "profile.parquet"
    with LocalServer(folder, 1) as server:

        def epoch_s(policy: str, rtt_ms: int, samples: int, profile: Path) -> float:
            on_step(f"{policy}, {rtt_ms} ms", next(steps), count)
            with DelayLine(server.port, link_bytes_per_s, rtt_ms / 1e3) as line:
                url = server.url.replace(f":{server.port}/", f":{line.port}/")
                return _epoch_s(url, Planning(policy, profile=profile), samples)

        most = len(open_store(folder))
        tried = min(most, _TRIED)
        for policy in POLICIES:
            for _ in range(_TRIALS[policy]):
                sample_s = epoch_s(policy, round_trips_ms[0], tried, profile) / tried
            samples = result["samples"][policy] = min(most, max(tried, int(least_s * _MARGIN / sample_s)))
            epoch_s(policy, round_trips_ms[0], samples, profile)
            for rtt_ms in round_trips_ms:
                # All start with the same profile, and each keeps learning on its own.
                own = work / f"profile-{policy}-{rtt_ms}.parquet"
                if profile.exists():
                    shutil.copyfile(profile, own)
                result["rtt_ms"][str(rtt_ms)][f"{policy}_s"] = epoch_s(policy, rtt_ms, samples, own)
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
