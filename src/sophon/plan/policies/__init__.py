"""The policies: one file each, one row each in `POLICIES`.

A policy is a pure function (profile, resources, options) → choice. To add one, write a file with `choose`, then add a
row here and a test file.
"""

from __future__ import annotations

from sophon.errors import ConfigError
from sophon.plan.policies import all as all_
from sophon.plan.policies import fastflow, none, optimal, resize, sophon
from sophon.plan.policies.choice import DEFAULTS, HEADROOM, Choice, Options, Policy, reserve_for, resize_k
from sophon.profile.table import Profile

POLICIES: dict[str, Policy] = {
    "none": none.choose,
    "all": all_.choose,
    "resize": resize.choose,
    "fastflow": fastflow.choose,
    "sophon": sophon.choose,
    "optimal": optimal.choose,
}
DEFAULT_POLICY = "optimal"


def policy(name: str) -> Policy:
    """Return the policy named `name`."""
    try:
        return POLICIES[name]
    except KeyError:
        raise ConfigError(f"there is no policy {name!r}; choose one of {', '.join(POLICIES)}.") from None


def applicable(profile: Profile, options: Options = DEFAULTS) -> tuple[str, ...]:
    """Return the policies for which a profile has cuts: all, except that `resize` needs its own cut."""
    k = resize_k(profile, options)
    fixed = any(profile.cuts[column].k == k for column in profile.raw_columns())
    return tuple(name for name in POLICIES if name != "resize" or fixed)


__all__ = [
    "DEFAULTS",
    "DEFAULT_POLICY",
    "HEADROOM",
    "POLICIES",
    "Choice",
    "Options",
    "Policy",
    "applicable",
    "policy",
    "reserve_for",
]
