"""Which cut each sample gets, and how the handshake limits it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sophon.codec.cut import RAW, WINDOW, Cut, check_cut, is_exact
from sophon.errors import ConfigError, printable
from sophon.link.transport import Opened
from sophon.pipeline import Pipeline
from sophon.pipeline.pipeline import in_words
from sophon.pipeline.probe import digest_of, digests, versions
from sophon.plan.plan import Plan
from sophon.plan.policies import POLICIES
from sophon.profile.columns import resize_k

BAND = "band"
"""The policy that asks for windows: without a node, parts of objects are read if they have an index."""

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]


class OffloadWarning(UserWarning):
    """Less runs near storage than requested; the tensors are the same."""


class SeedWarning(UserWarning):
    """A step of the pipeline depends on more than the seed; the tensors differ from run to run."""


@dataclass(frozen=True)
class Assignment:
    """One cut per sample.

    Args:
        cuts: The cuts that occur, at most 256.
        number_of: For each sample the number of its cut; None if all have the first.
        firsts: For each cut that a relay makes, the cut that the node sends to it; None for cuts that nodes make; empty
            if no sample goes through a relay.
    """

    cuts: tuple[Cut, ...] = (RAW,)
    number_of: Numbers | None = None
    firsts: tuple[Cut | None, ...] = ()

    def of(self, samples: Sequence[int]) -> tuple[Cut, ...]:
        """Return the cuts of some samples."""
        if self.number_of is None:
            return (self.cuts[0],) * len(samples)
        return tuple(self.cuts[number] for number in self.number_of[list(samples)].tolist())

    def firsts_of(self, samples: Sequence[int]) -> tuple[Cut | None, ...]:
        """Return the cuts at which nodes send these samples to relays; None for samples that skip the relays."""
        if not self.firsts:
            return (None,) * len(samples)
        if self.number_of is None:
            return (self.firsts[0],) * len(samples)
        return tuple(self.firsts[number] for number in self.number_of[list(samples)].tolist())

    def are_relayed(self, samples: Sequence[int] | NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of these samples go through a relay."""
        if not self.firsts or self.number_of is None:
            return np.full(len(samples), bool(self.firsts) and self.firsts[0] is not None)
        numbers = self.number_of[np.asarray(samples)]
        return np.asarray(np.array([first is not None for first in self.firsts], np.bool_)[numbers])

    def used(self) -> tuple[Cut, ...]:
        """Return the cuts that at least one sample has."""
        if self.number_of is None:
            return self.cuts[:1]
        return tuple(self.cuts[number] for number in np.unique(self.number_of).tolist())


def assignment_for(
    pipeline: Pipeline,
    policy: str | Cut | None,
    plan: Any,
    samples: int,
    *,
    dataset: str | None = None,
    allow_lossy: bool = False,
) -> Assignment:
    """Return the cuts that a policy or a plan gives.

    Args:
        pipeline: The pipeline to divide.
        policy: "none", "all", "resize", "band", or one cut for all samples; None for "none".
        plan: A `Plan`, the path of one, or a sequence of one cut per sample; overrides the policy.
        samples: Number of samples.
        dataset: Fingerprint of the data set; None if it does not matter.
        allow_lossy: Whether a sample may have a codec that changes its tensor.
    """
    if plan is not None:
        plan = Plan.load(plan) if isinstance(plan, str | PathLike) else plan
        if isinstance(plan, Plan):
            _check_job(plan, pipeline, dataset)
        assignment = _from_plan(plan)
        if assignment.number_of is not None and len(assignment.number_of) != samples:
            raise ConfigError(
                f"the plan is for {len(assignment.number_of):,} samples, the data set has {samples:,}; make a new plan"
            )
    else:
        assignment = Assignment((_fixed_cut(pipeline, policy),))
    for cut in assignment.cuts:
        check_cut(pipeline, cut)
    lossy = [cut for cut in assignment.used() if not is_exact(cut)]
    if lossy and not allow_lossy:
        raise ConfigError(
            f"{'policy' if plan is None else 'plan'}: {lossy[0]} changes the tensors that the model sees; give "
            "policy=Planning(…, allow_lossy=True) if that is intended, or a codec that keeps every bit, such as webp"
        )
    return assignment


def _check_job(plan: Plan, pipeline: Pipeline, dataset: str | None) -> None:
    """Raise if a plan belongs to a different job: its cuts may be legal here but mean something else."""
    said = plan.fingerprints
    plan.require(
        pipeline=pipeline.fingerprint if said.get("pipeline") else None,
        dataset=dataset if said.get("dataset") else None,
        recipe=in_words(pipeline),
    )


def assigned(plan: Plan, column: Numbers | None = None) -> Assignment:
    """Return the cuts of a plan and, for those that relays make, the cuts that nodes send to the relays.

    Args:
        plan: The plan.
        column: The route of each sample; by default the plan's.
    """
    firsts = tuple(None if route.is_direct else route.cuts[0] for route in plan.routes)
    arrivals = tuple(route.arrival for route in plan.routes)
    return Assignment(arrivals, plan.cut if column is None else column, firsts if any(firsts) else ())


def _from_plan(plan: Any) -> Assignment:
    if isinstance(plan, Assignment):
        return plan
    if isinstance(plan, Plan):
        return assigned(plan)
    if not isinstance(plan, Iterable):
        raise ConfigError(f"plan: expected a Plan, the path of one, or one cut per sample, got {plan!r}")
    cuts = [cut if isinstance(cut, Cut) else Cut.parse(cut) for cut in plan]
    table = list(dict.fromkeys(cuts)) or [RAW]
    if len(table) > 256:
        raise ConfigError(f"expected at most 256 different cuts, got {len(table)}")
    number = {cut: i for i, cut in enumerate(table)}
    return Assignment(tuple(table), np.array([number[cut] for cut in cuts], np.uint8))


def _fixed_cut(pipeline: Pipeline, policy: str | Cut | None) -> Cut:
    if isinstance(policy, Cut):
        return policy
    if policy in (None, "none"):
        return RAW
    if policy == BAND:
        return WINDOW
    if policy == "all":
        return Cut(pipeline.max_cut)
    if policy == "resize":
        k = resize_k(pipeline)
        if k is None:
            raise ConfigError("policy 'resize' needs an op that gives pictures of one size, such as RandomResizedCrop")
        return Cut(k)
    if isinstance(policy, str) and ":" in policy:
        return Cut.parse(policy)
    if policy in POLICIES:
        raise ConfigError(
            f"policy {policy!r} measures first and then plans, which only sophon.DataLoader does; use it, or give a "
            "plan made by `sophon plan` from a profile"
        )
    raise ConfigError(f"expected policy {', '.join(POLICIES)}, {BAND} or a cut such as 2:webp, got {policy!r}")


def agreed_cut(pipeline: Pipeline, opened: Opened) -> int:
    """Return how many ops give the same bits on the storage node as here; warn if it could be more."""
    agreed = count_agreed(pipeline, opened)
    if agreed < pipeline.max_cut:
        op = pipeline.ops[agreed].name()
        reason = opened.reason or f"the built-in test picture gives different bits there ({differences(opened)})"
        warnings.warn(
            f"{op} and everything after it stay on the trainer: {reason}. Install the same versions on the trainer "
            "and the storage node to offload them.",
            OffloadWarning,
            stacklevel=4,
        )
    return agreed


def count_agreed(pipeline: Pipeline, opened: Opened) -> int:
    """Return how many ops, from the first, give the same bits on the storage node as here."""
    if opened.digests == ("here",) * pipeline.portable:
        return pipeline.max_cut
    ours, theirs = digests(pipeline), opened.digests
    agreed = 0
    for one, other in zip(ours, theirs, strict=False):
        if one != other:
            break
        agreed += 1
    if agreed == len(ours) == len(theirs) and versions() == opened.versions:
        # Ops that fail on the built-in picture cannot be compared; equal versions have to be enough.
        agreed = opened.max_cut
    return min(agreed, pipeline.max_cut)


def versions_for(cuts: Sequence[Cut], opened: Opened) -> str:
    """Return the digest of the versions that a node must still have for these cuts; "" if no cut depends on them."""
    return digest_of(opened.versions) if opened.versions and any(cut.k > 0 for cut in cuts) else ""


def differences(opened: Opened) -> str:
    """Return which versions differ between the storage node and here, in words; all of them if none does."""
    here = versions()
    found = [f"{name} {opened.versions.get(name)} there, {here[name]} here" for name in here]
    different = [text for text, name in zip(found, here, strict=True) if opened.versions.get(name) != here[name]]
    return printable("; ".join(different or found))


def within(assignment: Assignment, agreed: int) -> Assignment:
    """Return an assignment in which cuts beyond the agreed one are replaced by raw bytes."""
    cuts = tuple(cut if cut.k <= agreed else RAW for cut in assignment.cuts)
    kept = zip(assignment.firsts, assignment.cuts, strict=False)
    firsts = tuple(first if cut.k <= agreed else None for first, cut in kept)
    return Assignment(cuts, assignment.number_of, firsts)
