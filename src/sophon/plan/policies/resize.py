"""One fixed cut for all samples, by default after the op that gives all pictures one size (the paper's Resize-Off)."""

from __future__ import annotations

from sophon.errors import ConfigError
from sophon.plan.policies.choice import Choice, Options, resize_k, uniform
from sophon.plan.resources import Resources
from sophon.profile.table import Profile


def choose(profile: Profile, resources: Resources, options: Options) -> Choice:  # noqa: ARG001 - the policies' signature
    """Give every sample the raw cut after the ops that the user or the profile names."""
    k = resize_k(profile, options)
    if k is None:
        raise ConfigError(
            "policy 'resize' needs an op that gives all pictures one size, but the profile names none; give the number "
            "of ops near storage (resize_k, or --resize-k)."
        )
    return Choice(uniform(profile, k), f"the first {k} ops of every sample run near storage")
