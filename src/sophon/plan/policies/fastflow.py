"""FastFlow's decisions (VLDB 2023) on our cost model: when, which and how much, the same for all samples.

When: the trainer's CPUs preprocess fewer samples per second than the consumer takes. Which: the best of the raw cuts,
each applied to the whole data set. How much: samples are shared by throughput, remote : local, so 3 : 1 offloads 75 %;
remote throughput is the rate that the nodes' resources (link, storage cores, store) allow at that cut, and local
throughput the rate of the trainer's cores on their own. The times of a share are means over the data set: FastFlow does
not look at individual samples.
"""

from __future__ import annotations

import numpy as np

from sophon.plan.cost import CutIndex, Prediction, predict
from sophon.plan.policies.choice import Choice, Options, uniform, untouched
from sophon.plan.resources import Resources, kind_named
from sophon.profile.table import Profile
from sophon.units import format_rate


def choose(profile: Profile, resources: Resources, options: Options) -> Choice:  # noqa: ARG001 - the policies' signature
    """Offload an evenly spread share of the samples at one cut, or none."""
    n = len(profile)
    cut = untouched(profile)
    local = predict(profile, cut, resources)
    rates = f"{format_rate(_rate(n, local.trainer_s))} against {format_rate(resources.consumer_samples_per_s)}"
    if local.trainer_s <= local.consumer_s:
        return Choice(cut, f"the trainer's CPUs keep up with the consumer ({rates}): nothing is offloaded")
    best_s, best = local.epoch_s, None
    for column in profile.raw_columns():
        k = profile.cuts[column].k
        if k == 0:
            continue
        offloaded = uniform(profile, k)
        remote = predict(profile, offloaded, resources)
        remote_rate = _rate(n, _busy_s(remote, of_node=True))
        local_rate = _rate(n, local.trainer_s)
        share = 1.0 if np.isinf(remote_rate) else remote_rate / (remote_rate + local_rate)
        epoch_s = _mixed_s(local, remote, share)
        if epoch_s < best_s:
            best_s, best = epoch_s, (k, share, offloaded)
    if best is None:
        return Choice(cut, f"the trainer's CPUs are too slow ({rates}), but no whole-data-set cut helps")
    k, share, offloaded = best
    return Choice(
        _spread(cut, offloaded, share),
        f"the trainer's CPUs are too slow ({rates}): the first {k} ops of {share:.0%} of the samples run near storage",
    )


def _rate(samples: int, seconds: float) -> float:
    return samples / seconds if seconds > 0 else np.inf


def _busy_s(made: Prediction, *, of_node: bool) -> float:
    # The longest time of the nodes' resources, or of the trainer's.
    return max((s for label, s in made.busy_s.items() if kind_named(label).is_of_node == of_node), default=0.0)


def _mixed_s(local: Prediction, remote: Prediction, share: float) -> float:
    # 0 × inf: with no storage cores and nothing offloaded, the time is zero.
    return max(
        (1 - share) * here_s + (share * remote.busy_s[label] if share > 0 else 0.0)
        for label, here_s in local.busy_s.items()
    )


def _spread(here: CutIndex, there: CutIndex, share: float) -> CutIndex:
    # Sample i is offloaded if the running count of offloaded samples, round(share × n) in all, rises at i.
    n = len(here)
    count = round(share * n)
    steps = np.arange(n + 1, dtype=np.int64) * count // n
    return np.where(np.diff(steps) > 0, there, here).astype(np.uint8)
