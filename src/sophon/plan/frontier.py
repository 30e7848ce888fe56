"""What-if: seconds and bytes of an epoch for other amounts of one resource, by default storage cores (Figure 4)."""

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
    """One answer to "what if there were so much of a resource".

    Args:
        rate: Name of the resource's rate.
        amount: How much of it.
        prediction: What an epoch takes then; infinite when the policy needs what is not there.
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
    """Return one point for every amount of a resource, with a plan of its own for each.

    Args:
        profile: What every sample costs at every route.
        resources: Everything else.
        amounts: How much of it to ask about.
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
