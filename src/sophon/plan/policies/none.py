"""No offloading: raw bytes cross the link, and all ops run at the trainer (the paper's No-Off)."""

from __future__ import annotations

from sophon.plan.policies.choice import Choice, Options, untouched
from sophon.plan.resources import Resources
from sophon.profile.table import Profile


def choose(profile: Profile, resources: Resources, options: Options) -> Choice:  # noqa: ARG001 - the policies' signature
    """Give every sample the cut 0:raw."""
    return Choice(untouched(profile), "nothing is offloaded")
