"""One fixed cut for all samples, by default after Decode and RandomResizedCrop (the paper's Resize-Off)."""

from __future__ import annotations

from sophon.plan.policies.choice import Choice, Options, uniform
from sophon.plan.resources import Resources
from sophon.profile.table import Profile


def choose(profile: Profile, resources: Resources, options: Options) -> Choice:  # noqa: ARG001 - the policies' signature
    """Give every sample the raw cut after `options.resize_k` ops."""
    k = options.resize_k
    return Choice(uniform(profile, k), f"the first {k} ops of every sample run near storage")
