"""The scenario ``replan``: CPU seconds that planning takes in a loader that reuses the profile of an earlier run.

The profile is read, the recorder takes over its contents, the costs of an epoch are predicted from the boxes of its
crops, and a plan is made. A loader does the same when its first epoch begins; when it plans again later, it skips the
first two steps. Each number of samples runs in a separate process, on one core. The profile is synthetic: sizes like
those of ImageNet, and rules learned from a few synthetic records per cut.

Concurrency: one child process at a time, pinned to one core if the system supports it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sophon.bench.ops import RECIPE
from sophon.bench.planning.plan import peak_bytes
from sophon.codec.cut import RAW
from sophon.errors import ConfigError, Error
from sophon.loader.order.order import epoch_order
from sophon.pipeline import Key, Trace
from sophon.plan.plan import Plan, make_plan
from sophon.plan.policies import HEADROOM, Options, reserve_for
from sophon.plan.resources import Resources
from sophon.process.scratch import scratch_folder
from sophon.profile.columns import cuts_to_profile
from sophon.profile.estimate import estimate
from sophon.profile.recorder import Recorder, Storage
from sophon.profile.table import Profile

SAMPLES = (1_281_167,)  # ImageNet's training set
CUTS = cuts_to_profile(RECIPE)
RESOURCES = Resources(link_bytes_per_s=60e6, storage_cores=2, trainer_cores=8)  # link and storage are both limiting
_OPTIONS = Options(reserve=reserve_for(RESOURCES.storage_cores), headroom=HEADROOM)
_RECORDS = 64  # per cut
_EPOCH = 1
_SEED = 4


def kept_profile(samples: int, seed: int = _SEED) -> Profile:
    """Return a synthetic profile in the form that a loader keeps.

    Args:
        samples: Number of samples.
        seed: Seed of the profile; the same seed gives the same profile.
    """
    rng = np.random.default_rng(seed)
    few = Recorder(RECIPE, CUTS, _RECORDS * len(CUTS), _SEED)
    _tell(few, rng)
    found = estimate(few, _EPOCH)
    sizes = np.asarray(np.exp(rng.normal(np.log((375.0, 500.0)), 0.2, (samples, 2))), np.int32)
    tables = [np.ones((samples, len(CUTS)), np.float32, order="F") for _ in range(3)]
    tables[0][:, found.column(RAW)] = 0.58 * sizes.prod(axis=1) * np.exp(rng.normal(0, 0.3, samples))  # 110 KB
    return replace(
        found, payload_bytes=tables[0], storage_s=tables[1], trainer_s=tables[2], measured=None, quality=(), sizes=sizes
    )


def _tell(recorder: Recorder, rng: np.random.Generator) -> None:
    """Record a few samples of every cut."""
    ops = len(RECIPE)
    for sample in range(min(_RECORDS * len(CUTS), len(recorder))):
        cut = CUTS[sample % len(CUTS)]
        trace, noise = Trace(ops), np.exp(rng.normal(0, 0.2))
        trace.size = (int(rng.integers(200, 500)), int(rng.integers(300, 600)))
        trace.codec_s = 0.0 if cut.codec == "raw" else 1e-3 * noise
        op_s = [4e-3 * noise, 1e-3 * noise, 1e-5, 1e-4, 2e-4]
        trace.op_s = [0.0 if position < cut.k else seconds for position, seconds in enumerate(op_s)]
        trace.op_bytes = [trace.size[0] * trace.size[1] * 3, 150_528, 150_528, 602_112, 602_112]
        raw_bytes = int(0.58 * trace.size[0] * trace.size[1] * noise)
        payload = raw_bytes if cut.k == 0 else trace.op_bytes[cut.k - 1]
        size_bytes = int(payload * (1.0 if cut.codec == "raw" else 0.5 * noise))
        told = Storage(sum(op_s[: cut.k]) + trace.codec_s, op_s[: cut.k], raw_bytes, trace.size)
        recorder.saw(Key(_SEED, 0, sample), cut, size_bytes, trace, told)


def run(samples: Sequence[int] = SAMPLES, progress: Callable[[str], None] = lambda _: None) -> list[dict[str, Any]]:
    """Measure each number of samples; `measure` describes a row."""
    rows = []
    for count in samples:
        if count < 1:
            raise ConfigError(f"expected one or more samples, got {count}.")
        progress(f"replan: {count:,} samples × {len(CUTS)} cuts")
        rows.append(_in_child(count))
    return rows


def _in_child(samples: int) -> dict[str, Any]:
    paths = os.pathsep.join(path for path in sys.path if path)  # the child finds the package as this process did
    done = subprocess.run(
        [sys.executable, "-m", "sophon.bench.planning.replan", str(samples)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Error(
            f"planning {samples:,} samples ended with code {done.returncode}: {done.stderr.strip()[-400:]} "
            "Free some memory or give fewer --samples."
        )
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def _plan(profile: Profile) -> Plan:
    # As in a loader: with some of the cores kept free, and with cuts spread over the order of the epoch.
    order = epoch_order(len(profile), _SEED, _EPOCH, shuffle=True)
    return make_plan(profile, RESOURCES, options=_OPTIONS, order=order)


def measure(samples: int) -> dict[str, Any]:
    """Plan in this process, pinned to one core.

    Returns:
        ``{"samples", "cuts", "load_s", "recall_s", "estimate_s", "plan_s", "cpu_s", "wall_s", "again_s", "peak_bytes",
        "epoch_s"}``; all are CPU seconds, except `epoch_s`, the prediction, and `wall_s`, the
        elapsed time. `cpu_s` is the sum of the four before it, and `again_s` is what planning again in the middle of
        the epoch takes.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with scratch_folder("bench") as folder:
        path = Path(folder, "profile.parquet")
        kept_profile(samples).save(path)
        recorder = Recorder(RECIPE, CUTS, samples, _SEED)
        start_s, marks = time.monotonic(), [time.process_time()]
        kept = Profile.load(path)
        marks.append(time.process_time())
        recorder.recall(kept)
        marks.append(time.process_time())
        profile = estimate(recorder, _EPOCH)
        marks.append(time.process_time())
        plan = _plan(profile)
        marks.append(time.process_time())
        wall_s = time.monotonic() - start_s
    _tell(recorder, np.random.default_rng(_SEED))
    again_s = time.process_time()
    _plan(estimate(recorder, _EPOCH))
    again_s = time.process_time() - again_s
    steps = dict(zip(("load_s", "recall_s", "estimate_s", "plan_s"), np.diff(marks).tolist(), strict=True))
    return {
        "samples": samples,
        "cuts": len(CUTS),
        **steps,
        "cpu_s": marks[-1] - marks[0],
        "wall_s": wall_s,
        "again_s": again_s,
        "peak_bytes": peak_bytes(),
        "epoch_s": plan.prediction.epoch_s,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(int(sys.argv[1]))))
