"""The plan: one route per sample, with the prediction for an epoch and the plan's origin."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sophon import artifact
from sophon.codec.cut import Cut
from sophon.codec.route import Route
from sophon.errors import ArtifactError, ConfigError
from sophon.plan.cost import CutIndex, Prediction, predict
from sophon.plan.policies import DEFAULT_POLICY, DEFAULTS, Options, policy
from sophon.plan.policies.choice import Choice, exact_columns, untouched
from sophon.plan.pricing import Costs
from sophon.plan.resources import Resources
from sophon.plan.stretches import level
from sophon.profile.table import Profile
from sophon.units import format_bytes, format_seconds

FORMAT = "plan"
FORMAT_VERSION = 2
_MOST_LOSS = 1.02  # most that exchanges may lengthen the predicted epoch: level stretches do not make up for more


@dataclass(frozen=True, eq=False)
class Plan:
    """One route per sample.

    Args:
        cut: Index into `routes` per sample, one byte each.
        routes: The routes to choose from; a cut stands for the route with only that cut.
        policy: Name of the policy that chose the routes.
        reason: Why the policy chose these routes, in one sentence.
        prediction: Prediction for an epoch.
        untouched: Prediction with nothing offloaded.
        resources: The resources that the plan was made for.
        options: Options that the policy was given.
        fingerprints: Fingerprints of the pipeline and data set.
        recipe: The pipeline in words; "" if unknown.
        untried: Number of routes that could not be weighed because no sample was sent by them yet.
    """

    cut: CutIndex
    routes: tuple[Route, ...]
    policy: str
    reason: str
    prediction: Prediction
    untouched: Prediction
    resources: Resources
    options: Options
    fingerprints: Mapping[str, str]
    recipe: str = ""
    untried: int = 0

    def __post_init__(self) -> None:
        cut = np.asarray(self.cut, dtype=np.uint8).view()
        routes = tuple(map(Route.of, self.routes))
        if cut.ndim != 1 or len(cut) == 0 or int(cut.max()) >= len(routes):
            raise ConfigError(
                f"a plan of shape {cut.shape} with {len(routes)} cuts cannot be used; give one known cut per sample."
            )
        object.__setattr__(self, "routes", routes)
        cut.flags.writeable = False
        object.__setattr__(self, "cut", cut)

    def __len__(self) -> int:
        return len(self.cut)

    def __getitem__(self, sample: int) -> Route:
        return self.routes[int(self.cut[sample])]

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """The cut of each route, for a trainer that asks a storage node directly.

        Raises:
            ConfigError: Some sample's route has a second cut, which only a relay can make.
        """
        relayed = [self.routes[column] for column in np.unique(self.cut) if not self.routes[column].is_direct]
        if relayed:
            raise ConfigError(
                f"the plan sends samples by the route {relayed[0]}, but there is no relay; make a new plan."
            )
        return tuple(route.arrival for route in self.routes)

    def counts(self) -> dict[Route, int]:
        """Return how many samples have each route, most frequent first."""
        found = np.bincount(self.cut, minlength=len(self.routes))
        order = np.argsort(-found, kind="stable")
        return {self.routes[column]: int(found[column]) for column in order if found[column]}

    def require(
        self,
        *,
        pipeline: str | None = None,
        dataset: str | None = None,
        samples: int | None = None,
        recipe: str = "",
    ) -> None:
        """Raise `ArtifactError` if the plan belongs to a different job; `recipe` is this job's pipeline in words."""
        remedy = "Make a new plan for this job from its own profile."
        expected = {"pipeline": pipeline, "dataset": dataset}
        words = {"pipeline": (self.recipe, recipe)}
        artifact.require_fingerprints("the plan", self.fingerprints, expected, remedy, words)
        if samples is not None and samples != len(self):
            raise ArtifactError(f"the plan is for {len(self)} samples, but this job has {samples}. {remedy}")

    @property
    def rivals(self) -> str:
        """The plans that its bound is about, as the beginning of a sentence: "No plan"."""
        return "No plan with the cuts measured so far" if self.untried else "No plan"

    def explain(self) -> str:
        """Return the decisions and their reasons, in words."""
        now, before = self.prediction, self.untouched
        shares = [f"{count / len(self):.1%} {route}" for route, count in self.counts().items()]
        busy = [f"{label} {format_seconds(seconds)}" for label, seconds in now.busy_s.items()]
        lines = [
            f"Policy {self.policy}: {self.reason}.",
            f"Cuts: {', '.join(shares)}.",
            f"An epoch takes {format_seconds(now.epoch_s)} with this plan; the bottleneck is the {now.bottleneck} "
            f"({', '.join(busy)}).",
            f"{format_bytes(now.link_bytes)} cross the link and {format_seconds(now.storage_cpu_s)} of CPU "
            "are spent near storage.",
            f"Without offloading it would take {format_seconds(before.epoch_s)}; the bottleneck would be the "
            f"{before.bottleneck}, and {format_bytes(before.link_bytes)} would cross the link.",
        ]
        if now.bound_s is not None and np.isfinite(now.bound_s):
            over = now.epoch_s / now.bound_s - 1 if now.bound_s > 0 else 0.0
            least = format_seconds(now.bound_s)
            proof = f"{self.rivals} can take less than {least}; this one is at most {100 * over:.2g} % above the best."
            lines.append(proof if over > 1e-9 else f"{self.rivals} can be faster.")
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a Parquet file; the same plan gives the same bytes."""
        provenance = {
            "routes": [str(route) for route in self.routes],
            "policy": self.policy,
            "reason": self.reason,
            "prediction": self.prediction.to_json(),
            "untouched": self.untouched.to_json(),
            "resources": self.resources.to_json(),
            "options": asdict(self.options),
            "recipe": self.recipe,
            "untried": self.untried,
        }
        header = artifact.Header(FORMAT, FORMAT_VERSION, self.fingerprints, provenance)
        artifact.save(path, header, {"cut": self.cut})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan written by `save`.

        Raises:
            ArtifactError: The file is missing, damaged, or of a different kind or version.
        """
        with artifact.load(path, format=FORMAT, version=FORMAT_VERSION) as file:
            file.require_columns({"cut": pa.uint8()})
            cut = np.empty(file.rows, np.uint8)
            file.read("cut", cut)
            said = file.header.provenance
            try:
                return cls(
                    cut=cut,
                    routes=tuple(Route.parse(text) for text in said["routes"]),
                    policy=str(said["policy"]),
                    reason=str(said["reason"]),
                    prediction=Prediction.from_json(said["prediction"]),
                    untouched=Prediction.from_json(said["untouched"]),
                    resources=Resources.from_json(said["resources"]),
                    options=Options(**said["options"]),
                    fingerprints=file.header.fingerprints,
                    recipe=str(said.get("recipe", "")),
                    untried=int(said.get("untried", 0)),
                )
            except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
                raise ArtifactError(f"{path} does not have the header of a plan ({error}); plan again.") from error


def make_plan(
    profile: Profile,
    resources: Resources,
    policy_name: str = DEFAULT_POLICY,
    options: Options = DEFAULTS,
    order: NDArray[np.integer] | None = None,
) -> Plan:
    """Return a policy's plan: the same profile, resources and order give the same plan, byte for byte.

    Args:
        profile: The cost of every sample at every cut.
        resources: The resources to plan for.
        policy_name: One of `sophon.plan.policies.POLICIES`.
        options: Options for the policy.
        order: The samples in the order of the epoch, if known; every stretch of the epoch then loads the resources in
            about the same proportion.
    """
    choice = policy(policy_name)(profile, resources, options)
    cut = choice.cut if order is None else _levelled(profile, resources, options, choice, order)
    return Plan(
        cut=cut,
        routes=profile.routes,
        policy=policy_name,
        reason=choice.reason,
        prediction=replace(predict(profile, cut, resources), bound_s=choice.bound_s),
        untouched=predict(profile, untouched(profile), resources),
        resources=resources,
        options=options,
        fingerprints=profile.fingerprints,
        recipe=profile.recipe,
        untried=_untried(profile),
    )


def _untried(profile: Profile) -> int:
    illegal = (column for column in range(len(profile.routes)) if profile.has_illegal(column))
    return sum(not np.isfinite(profile.payload_bytes[:, column]).any() for column in illegal)


def _levelled(
    profile: Profile, resources: Resources, options: Options, choice: Choice, order: NDArray[np.integer]
) -> CutIndex:
    # Exchanges slightly increase the predicted time of the whole epoch, but never so much that another policy would be
    # predicted to be faster.
    if choice.prices is None:
        return choice.cut
    costs = Costs.of(profile, resources, exact_columns(profile, options), options.reserve)
    cut = level(costs, choice.cut, choice.prices, order)
    before_s, after_s = (predict(profile, one, resources).epoch_s for one in (choice.cut, cut))
    return cut if after_s <= max(before_s, min(choice.rivals_s, _MOST_LOSS * before_s)) else choice.cut
