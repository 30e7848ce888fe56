"""Planner: measures while the loader runs, plans, and plans anew when the world has changed.

The first epoch sends most samples as they are and learns what they cost (`sophon.profile`). From then on every epoch
gets a plan of its own, since the boxes of its crops are known beforehand; and in the middle of one the plan is made
anew when the link or the storage node has become faster or slower by more than a quarter. All of this changes when and
where work is done, never what comes out.

Concurrency: told by the engine's threads; a plan is put in place by replacing the data set's assignment as a whole.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon.codec.cut import RAW, Cut
from sophon.codec.table import offered
from sophon.codec.wire import Reply
from sophon.errors import ArtifactError, ConfigError
from sophon.loader.clocks import LinkClock
from sophon.loader.cuts import Assignment, agreed_cut
from sophon.loader.dataset import RemoteDataset
from sophon.loader.replan import Replanning, moved
from sophon.loader.stats import Stats
from sophon.loader.transport import Fetch
from sophon.pipeline import Key, Trace
from sophon.plan.plan import Plan, make_plan
from sophon.plan.policies import Options
from sophon.plan.resources import Resources
from sophon.profile.cuts import cuts_to_profile
from sophon.profile.estimate import estimate
from sophon.profile.explore import DEFAULT_SHARE, explore
from sophon.profile.recorder import Recorder, Storage
from sophon.profile.table import Profile
from sophon.profile.verdict import Verdict
from sophon.store.cache import user_folder
from sophon.store.fork import renew_after_fork

_UNMEASURED_LINK = 1e9  # bytes per second, where not one stretch of a second was seen


@dataclass(frozen=True)
class PlanSettings:
    """What a user may tell the planner.

    Args:
        policy: Which of `sophon.plan.policies.POLICIES`.
        options: What the policy is told.
        share: Of the samples that are cut in the first epoch, to learn what codecs cost.
        profile: Where the profile is kept; None for the user's cache folder.
        keep: Whether it is kept, and used again by the next run.
    """

    policy: str = "optimal"
    options: Options = field(default_factory=Options)
    share: float = DEFAULT_SHARE
    profile: Path | None = None
    keep: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.share, bool) or not 0 <= self.share <= 1:
            raise ConfigError(f"profile_share: expected a number in 0 … 1, got {self.share!r}")


class Planner:
    """Learns, plans and watches for one loader.

    Args:
        dataset: Whose samples; its assignment is replaced.
        settings: What the user told.
        trainer_cores: How many cores finish samples here.
        stats: The loader's own counts.
    """

    def __init__(self, dataset: RemoteDataset, settings: PlanSettings, trainer_cores: float, stats: Stats) -> None:
        self.plan: Plan | None = None
        self.profile: Profile | None = None
        self.revisions = 0
        self._dataset = dataset
        self._settings = settings
        self._trainer_cores = trainer_cores
        self._stats = stats
        pipeline, opened = dataset.pipeline, dataset.opened
        dataset.agreed_cut = agreed_cut(pipeline, opened)
        codecs = [name for name in offered() if name in opened.codecs]
        lossy = settings.options.allow_lossy
        self.cuts = cuts_to_profile(pipeline, codecs, max_k=dataset.agreed_cut, allow_lossy=lossy)
        self._recorder = Recorder(pipeline, self.cuts, len(dataset), dataset.seed)
        self._clock = LinkClock(opened.cores)
        self.renew()
        renew_after_fork(self)
        self._resources: Resources | None = None
        self._epoch = 0
        self._ranks = 1
        self._saves = 0
        self._begin = (0, 0.0)
        self._replanning = Replanning()
        if settings.keep:
            self._recall()

    def renew(self) -> None:
        """Make the locks anew in a forked child."""
        self._lock = threading.RLock()  # as in `stats`
        self._planning = threading.Lock()

    # --- an epoch -----------------------------------------------------------------------------------------------------

    def begin(self, epoch: int, ranks: int = 1) -> None:
        """Give the samples of an epoch their cuts; each of several ranks sees only its share of them."""
        self._epoch = epoch
        self._ranks = ranks
        self._begin = (self._stats.samples, self._stats.consumer_s)
        if self._is_ready:
            with self._lock:
                self._clock.hope()
            self._replan(self._resources if self.plan is None and self._resources else self.resources())
        else:
            column = explore(
                self._dataset.pipeline, self.cuts, len(self._dataset), self._settings.share, self._dataset.seed
            )
            self._dataset.assignment = Assignment(self.cuts, column)
        self._replanning.settle(time.monotonic())

    def end(self) -> None:
        """Take stock behind an epoch."""
        if not self._is_ready:
            return
        self._resources = self.resources()
        keep = self._settings.keep and self._saves < 2  # the second time with what the first plan has shown
        if self.profile is None or keep:
            profile = self._estimate(self._epoch)
            self.profile = self.profile or profile
            if keep:
                self._saves += 1
                self._save(profile)

    @property
    def _is_ready(self) -> bool:
        return self._recorder.seen >= max(0.5 * len(self._dataset) / self._ranks, 1) and (
            self._recorder.count(RAW) > 0 or self.profile is not None
        )

    def resources(self) -> Resources:
        """Return what there is to spend, as far as the clocks have seen it."""
        samples, consumer_s = self._begin
        taken, spent_s = self._stats.samples - samples, self._stats.consumer_s - consumer_s
        rate = taken / spent_s if taken and spent_s > 0 else math.inf
        if not taken and self._resources is not None:
            rate = self._resources.consumer_samples_per_s
        with self._lock:
            link = self._clock.link_bytes_per_s
            cores = self._clock.storage_cores
        if link is None and self._resources is not None:
            link = self._resources.link_bytes_per_s
        return Resources(link or _UNMEASURED_LINK, cores, self._trainer_cores, rate)

    def finish_s(self) -> NDArray[Any] | None:
        """Return the seconds that finishing each sample is predicted to take here under the plan, if there is one."""
        if self.plan is None or self.profile is None or self.plan.cuts != self.profile.cuts:
            return None
        return self.profile.trainer_s[np.arange(len(self.profile)), self.plan.cut]

    def verdict(self) -> Verdict | None:
        """Return what would hold training back if nothing were offloaded."""
        if self.profile is None or self._resources is None:
            return None
        raw, samples = self.profile.column(RAW), len(self.profile)
        bytes_each = float(self.profile.payload_bytes[:, raw].sum(dtype=float)) / samples
        cpu_each = float(self.profile.trainer_s[:, raw].sum(dtype=float)) / samples
        resources = self._resources
        return Verdict(
            consumer_per_s=resources.consumer_samples_per_s,
            io_per_s=resources.link_bytes_per_s / max(bytes_each, 1.0),
            cpu_per_s=resources.trainer_cores / max(cpu_each, 1e-9),
        )

    def _replan(self, resources: Resources) -> None:
        with self._planning:
            profile = self._estimate(self._epoch)
            plan = make_plan(profile, resources, self._settings.policy, self._settings.options)
            self.profile, self.plan, self._resources = profile, plan, resources
            self._dataset.assignment = Assignment(plan.cuts, plan.cut)

    def _estimate(self, epoch: int) -> Profile:
        told = {"url": self._dataset.url}
        if self._resources is not None:
            told["resources"] = self._resources.to_json()  # type: ignore[assignment]
        return estimate(self._recorder, epoch, dataset=self._dataset.opened.fingerprint, provenance=told)

    # --- told by the engine -------------------------------------------------------------------------------------------

    def began(self, request: int) -> None:
        """A request was sent."""
        with self._lock:
            self._clock.began(request, time.monotonic())

    def received(self, request: int, sample: int, reply: Reply, asked: Cut, fetch: Fetch) -> None:
        """A reply has come."""
        now_s = time.monotonic()
        with self._lock:
            self._clock.got(request, len(reply.payload), reply.cpu_s, fetch.computing_s, now_s)
        if reply.cut != asked and reply.reason in ("op_failed", "crash", "cpu_limit"):
            self._recorder.refused(sample, asked)
        if self._replanning.is_due(now_s):
            self._look(now_s)

    def ended(self, request: int) -> None:
        """A stream has ended."""
        with self._lock:
            self._clock.ended(request, time.monotonic())

    def finished(self, key: Key, reply: Reply, trace: Trace) -> None:
        """A sample was finished here."""
        told = Storage(reply.cpu_s, reply.op_s, reply.raw_bytes, reply.size)
        self._recorder.saw(key, reply.cut, len(reply.payload), trace, told)

    def _look(self, now_s: float) -> None:
        """Plan anew if the link or the storage node is not what the plan was made for."""
        self._replanning.looked(now_s)
        planned = self.plan.resources if self.plan is not None else None
        if planned is None:
            return
        seen = self.resources()
        if not moved(seen, planned) or self._planning.locked():
            return
        self._replanning.settle(now_s)
        self._replan(replace(seen, consumer_samples_per_s=planned.consumer_samples_per_s))
        self.revisions += 1

    # --- from one run to the next -------------------------------------------------------------------------------------

    @property
    def path(self) -> Path | None:
        """Where the profile is kept."""
        if self._settings.profile is not None:
            return self._settings.profile
        folder = user_folder()
        if folder is None:
            return None
        job = [self._dataset.pipeline.fingerprint, self._dataset.opened.fingerprint, *map(str, self.cuts)]
        return folder / "profiles" / f"{hashlib.sha256(' '.join(job).encode()).hexdigest()[:32]}.parquet"

    def _recall(self) -> None:
        path = self.path
        if path is None or not path.exists():
            return
        try:
            profile = Profile.load(path)
            profile.require(pipeline=self._dataset.pipeline.fingerprint, dataset=self._dataset.opened.fingerprint)
            if len(profile) != len(self._dataset) or "rules" not in profile.provenance:
                raise ArtifactError(f"{path}: not made by a loader of this data set; give another path, or remove it.")
            said = profile.provenance.get("resources")
            self._resources = Resources.from_json(said) if said else None
            self._recorder.recall(profile)
        except ArtifactError:
            if self._settings.profile is not None:
                raise
            return  # it is only a cache: the first epoch measures again
        self.profile = profile

    def _save(self, profile: Profile) -> None:
        path = self.path
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{path.name}.{os.getpid()}")
            profile.save(partial)
            partial.replace(path)
        except OSError as error:
            if self._settings.profile is not None:
                raise ConfigError(f"the profile cannot be kept at {path}: {error}; give another path") from error
