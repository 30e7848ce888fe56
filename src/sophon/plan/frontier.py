"""What-if: seconds and bytes of an epoch for every number of storage cores (the paper's Figure 4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sophon.plan.cost import predict
from sophon.plan.policies import DEFAULT_POLICY, DEFAULTS, Options, policy
from sophon.plan.resources import Resources
from sophon.profile.table import Profile

FIGURE_4_CORES = (0, 1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Point:
    """One answer to "what if storage had so many cores".

    Args:
        storage_cores: How many.
        epoch_s: Seconds of an epoch; infinite when the policy needs cores that are not there.
        link_bytes: Bytes on the link per epoch.
        storage_cpu_s: CPU seconds near storage per epoch.
        bottleneck: What decides: link, storage, trainer or consumer.
    """

    storage_cores: float
    epoch_s: float
    link_bytes: float
    storage_cpu_s: float
    bottleneck: str


def frontier(
    profile: Profile,
    resources: Resources,
    cores: Iterable[float] = FIGURE_4_CORES,
    policy_name: str = DEFAULT_POLICY,
    options: Options = DEFAULTS,
) -> tuple[Point, ...]:
    """Return one point for every number of storage cores, planned anew for each.

    Args:
        profile: What every sample costs at every cut.
        resources: Everything but the storage cores.
        cores: The numbers of storage cores to ask about.
        policy_name: One of `sophon.plan.policies.POLICIES`.
        options: What the policy is told.
    """
    choose = policy(policy_name)
    points = []
    for count in cores:
        given = resources.with_storage_cores(count)
        made = predict(profile, choose(profile, given, options).cut, given)
        points.append(Point(given.storage_cores, made.epoch_s, made.link_bytes, made.storage_cpu_s, made.bottleneck))
    return tuple(points)
