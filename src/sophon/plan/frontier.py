"""What-if: seconds and bytes of an epoch for different amounts of one resource, by default storage cores (Figure 4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sophon.plan.cost import Prediction, predict
from sophon.plan.policies import DEFAULT_POLICY, DEFAULTS, Options, policy
from sophon.plan.resources import Resources
from sophon.profile.table import Profile

FIGURE_4_CORES = (0, 1, 2, 3, 4, 5)
FIGURE_4_RATE = "storage_cores"


@dataclass(frozen=True)
class Point:
    """One what-if: the prediction for an amount of one resource.

    Args:
        rate: Name of the resource's rate.
        amount: Amount of the resource.
        prediction: Prediction for an epoch; infinite if the policy needs a resource that is missing.
    """

    rate: str
    amount: float
    prediction: Prediction

    def to_json(self) -> dict[str, Any]:
        """Return the point as a JSON object."""
        made = self.prediction
        return {self.rate: self.amount, "epoch_s": made.epoch_s, "bottleneck": made.bottleneck, **made.used}


def frontier(
    profile: Profile,
    resources: Resources,
    amounts: Iterable[float] = FIGURE_4_CORES,
    policy_name: str = DEFAULT_POLICY,
    options: Options = DEFAULTS,
    *,
    rate: str = FIGURE_4_RATE,
) -> tuple[Point, ...]:
    """Return one point for every amount of a resource, each with its own plan.

    Args:
        profile: The cost of every sample at every route.
        resources: The resources; the amount of the one that varies is replaced.
        amounts: Amounts to try.
        policy_name: One of `sophon.plan.policies.POLICIES`.
        options: Options for the policy.
        rate: Name of the resource's rate.
    """
    choose = policy(policy_name)
    points = []
    for amount in amounts:
        given = resources.having(**{rate: amount})
        points.append(Point(rate, float(amount), predict(profile, choose(profile, given, options).cut, given)))
    return tuple(points)
