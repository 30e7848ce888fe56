"""All ops of all samples run near storage, and tensors cross the link (the paper's All-Off)."""

from __future__ import annotations

from sophon.plan.policies.choice import Choice, Options, uniform
from sophon.plan.resources import Resources
from sophon.profile.table import Profile


def choose(profile: Profile, resources: Resources, options: Options) -> Choice:  # noqa: ARG001 - the policies' signature
    """Give every sample the last raw cut."""
    k = profile.cuts[profile.raw_columns()[-1]].k
    return Choice(uniform(profile, k), f"all {k} ops of every sample run near storage")
