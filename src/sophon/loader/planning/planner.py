"""Planner: measures while the loader runs, plans, and plans again when conditions have changed.

The first samples of the first epoch are sent in several ways to measure their cost (`sophon.profile`). A few dozen are
enough for a first plan, and better plans follow as more samples pass (`early`); the paper's own policies measure for a
whole epoch, as the paper describes them. From then on every epoch gets its own plan, since the boxes of its crops are
known beforehand. A new plan is made in the middle of an epoch when the link or the storage node has become faster or
slower by more than a quarter. All of this changes when and where work is done, never its results.

A plan covers the whole job, whatever the number of ranks: all samples, with the resources of all ranks together. Each
rank makes its own plan from its own clocks, and assumes that the other ranks see the same: R times its part of the
link, R times its trainer cores and its consumer, and the cores of all storage nodes, or R times the share of them that
it actually gets. So a prediction is for the epoch that all ranks run side by side, and a saved profile remains valid
for a run with more or fewer ranks.

Concurrency: called by the engine's threads. Before an epoch, the plan is made in the thread that iterates; during an
epoch, in a background thread (`background`), which is abandoned when the epoch ends. A plan takes effect by replacing
the data set's assignment as a whole.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon.codec.cut import RAW, Cut
from sophon.codec.table import offered
from sophon.errors import ConfigError
from sophon.link.transport import Fetch
from sophon.link.wire import Reply
from sophon.loader.account.stats import Stats
from sophon.loader.order.ranks import ranks_here
from sophon.loader.planning.background import Background, Job
from sophon.loader.planning.clocks import LinkClock, believed
from sophon.loader.planning.early import Early
from sophon.loader.planning.kept import KeptProfile, cache_path
from sophon.loader.planning.node_clocks import NodeClocks
from sophon.loader.planning.receiving import Receiving
from sophon.loader.planning.relaying import Relaying
from sophon.loader.planning.replanning import Replanning, moved
from sophon.loader.sources.assignment import Assignment, agreed_cut, assigned
from sophon.loader.sources.samples import Samples
from sophon.pipeline import Key, Trace
from sophon.pipeline.pipeline import in_words
from sophon.plan.plan import Plan, make_plan
from sophon.plan.policies import HEADROOM, Options, reserve_for
from sophon.plan.resources import Node, Resources
from sophon.plan.scaling import Report
from sophon.process.cores import cores_here, quota_here
from sophon.process.renewal import renew_after_fork
from sophon.process.threads import cpu_s_of_threads
from sophon.profile.columns import cuts_to_profile
from sophon.profile.estimate import estimate
from sophon.profile.explore import DEFAULT_SHARE, explore, explore_first
from sophon.profile.recorder import Recorder, Storage
from sophon.profile.table import Profile
from sophon.profile.verdict import Verdict

# Reasons for a smaller cut that will recur. Not that this pass needed the whole file: the next one may crop.
_CANNOT = ("op_failed", "crash", "cpu_limit")
_OWN_WEIGHT = 0.02  # weight of the newest sample in the mean cost of the user's own steps: averages about fifty
_CAREFUL = 4  # times the samples that the first plan needs: that many are in flight by the time it is made
_MOST_ASKED = 1 << 20  # samples whose sizes are requested when an epoch begins: 8 MB beside the first samples
_BUSY = 0.6  # share of the trainer's cores busy with samples: above this, the link's spare capacity is unknown
_BEYOND_BUSY = 4.0  # times the estimated speed of such a link, if relays could make use of it
_LIBRARY = ("event_engine", "grpc", "timer_manager", "lifeguard", "default-executo")  # names of gRPC's own threads
_UNMEASURED_LINK = 1e9  # bytes per second, if not even one stretch of a second was measured


@dataclass(frozen=True)
class PlanSettings:
    """Settings of the planner.

    Args:
        policy: One of `sophon.plan.policies.POLICIES`.
        options: Options for the policy.
        share: Share of the samples that are cut in the first epoch, to measure the cost of codecs.
        profile: Where the profile is kept; None for the user's cache folder.
        keep: Whether the profile is kept for the next run.
    """

    policy: str = "optimal"
    options: Options = field(default_factory=Options)
    share: float = DEFAULT_SHARE
    profile: Path | None = None
    keep: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.share, bool) or not 0 <= self.share <= 1:
            raise ConfigError(f"share: expected a number in 0 … 1 in Planning(share=…), got {self.share!r}")


class Planner:
    """Measures, plans and plans again for one loader.

    Args:
        samples: Samples to plan cuts for; their assignment is replaced.
        settings: The user's settings.
        trainer_cores: Number of cores that finish samples here.
        stats: The loader's own counts.
        is_alone: Whether the thread that iterates does everything, including the work on samples and batches here.
        may_relay: Whether samples may go through relays, if there are any.
    """

    def __init__(
        self,
        samples: Samples,
        settings: PlanSettings,
        trainer_cores: float,
        stats: Stats,
        is_alone: bool = False,
        may_relay: bool = True,
    ) -> None:
        self.plan: Plan | None = None
        self.profile: Profile | None = None
        self.revisions = 0
        self._samples = samples
        self._settings = settings
        self._trainer_cores = trainer_cores
        self._stats = stats
        self._is_alone = is_alone
        self._own_s = 0.0
        pipeline, opened = samples.pipeline, samples.opened
        samples.agreed_cut = agreed_cut(pipeline, opened)
        codecs = [name for name in offered() if name in opened.codecs]
        lossy = settings.options.allow_lossy
        self.cuts = cuts_to_profile(pipeline, codecs, max_k=samples.agreed_cut, allow_lossy=lossy)
        self._recorder = Recorder(pipeline, self.cuts, len(samples), samples.seed)
        self._clock = LinkClock(samples.sources.cores(opened))
        self._node_clocks = NodeClocks()
        self._receiving = Receiving()
        self._bare_s: NDArray[Any] | None = None  # seconds of finishing that the plan assumed, ops and codecs alone
        self._work_s = 0.0  # CPU seconds of the loader's threads, without finishing
        self._beyond = (False, 0)  # whether the link may be faster than measured, and how many measurements there were
        self._relaying: Relaying | None = None
        has_relays = samples.sources.relays or samples.sources.may_gain_relays
        if may_relay and settings.policy == "optimal" and has_relays:
            self._relaying = Relaying(pipeline, self.cuts)
            samples.sources.report = self.report
        self._reported = (0.0, 0.0)  # seconds that the consumer has waited and worked, at the last report
        self._background = Background()
        self.renew()
        renew_after_fork(self)
        self._resources: Resources | None = None
        self._epoch = 0
        self._ranks = 1
        self._row: NDArray[np.int64] | None = None
        self._early: Early | None = None  # in an epoch that is planned while it runs
        self._tried: tuple[NDArray[Any], NDArray[np.uint8]] | None = None  # the samples tried in it, and their columns
        self._has_asked = False
        self._saves = 0
        self._begin = (0, 0.0)
        self._start = (time.monotonic(), 0.0)
        self._replanning = Replanning()
        self._kept = self._kept_at()
        self.profile = self._kept.load(self._recall)

    @property
    def policy(self) -> str:
        """Name of the policy that makes the plans."""
        return self._settings.policy

    def renew(self) -> None:
        """Replace the lock in a forked child."""
        self._lock = threading.RLock()  # as in `stats`

    @property
    def careful(self) -> int:
        """How many samples of this epoch to request gradually, until the first plan exists."""
        return 0 if self._early is None else _CAREFUL * self._early.first

    # --- an epoch -----------------------------------------------------------------------------------------------------

    def begin(
        self,
        epoch: int,
        ranks: int = 1,
        row: NDArray[np.int64] | None = None,
        left: NDArray[np.int64] | None = None,
    ) -> None:
        """Give the samples of an epoch their cuts.

        Args:
            epoch: Number of the epoch.
            ranks: Number of ranks that share it.
            row: The samples of this rank, in order; None if not known.
            left: Positions in the row that are still to come; None for all.
        """
        self._background.check()
        self._background.abandon()  # if two passes run at once, or the previous one was not finished
        self._epoch = epoch
        self._ranks = ranks
        self._row = row
        self._early = self._tried = None
        self._begin = (self._stats.samples, self._loop_s())
        self._samples.sources.revisit()
        if self._is_ready:
            self._ask_for_sizes()
            with self._lock:
                self._clock.hope()
                self._node_clocks.hope()
                if self._relaying is not None:
                    self._relaying.hope()
            self._replan(self._resources if self.plan is None and self._resources else self.resources())
        else:
            self._samples.assignment = Assignment(
                self.cuts, self._first_cuts(row if row is None or left is None else row[left])
            )
        with self._lock:
            self._clock.turn()
            self._node_clocks.turn()
        self._start = (time.monotonic(), self._cpu_s())
        self._replanning.settle(time.monotonic())

    def _first_cuts(self, row: NDArray[np.int64] | None) -> NDArray[np.uint8]:
        """Return a column for each sample of an epoch before anything is known."""
        samples, share = self._samples, self._settings.share
        told = (samples.pipeline, self.cuts, len(samples), share, samples.seed)
        found = explore_first(*told, row) if row is not None and self.policy == "optimal" else None
        if found is None:
            return explore(*told, row, self._ranks if row is None else 1)
        self._tried = (found.tried, found.columns[found.tried])
        self._early = Early(found.head)
        self._recorder.is_hasty = True
        return found.columns

    def _ask_for_sizes(self) -> None:
        """Ask once for the sizes of all files if a plan is made before they are known.

        On ImageNet photos, a plan that knows the sizes sends 2 % more bytes than one that has seen every sample; a plan
        that does not know them sends 7 % more.
        """
        is_worth_it = self._ranks > 1 or (self._early is not None and len(self._samples) <= _MOST_ASKED)
        if is_worth_it and not self._has_asked:
            self._has_asked = True
            sizes = self._samples.sources.file_sizes(len(self._samples), self._samples.fields)
            if sizes is not None:
                self._recorder.expect(sizes)

    def end(self) -> None:
        """Update the profile after an epoch."""
        self._background.abandon()
        self._early = None  # cuts that were not tried in it can still be predicted, and the next epoch may want them
        if not self._is_ready:
            return
        self._resources = self.resources()
        keep = self._settings.keep and self._saves < 2  # the second time with the results of the first plan
        if self.profile is None or keep:
            profile = self._estimate(self._epoch)
            self.profile = self.profile or self._with_own_steps(profile)
            if keep:
                self._saves += 1
                self._kept.save(profile)

    @property
    def _is_ready(self) -> bool:
        if self.plan is not None:
            return True
        return self._recorder.seen >= max(0.5 * len(self._samples) / self._ranks, 1) and (
            self._recorder.count(RAW) > 0 or self.profile is not None
        )

    def resources(self, *, lately: bool = False) -> Resources:
        """Return the resources of all ranks together, estimated from this rank's measurements.

        Args:
            lately: Whether to use the last seconds rather than the whole epoch.
        """
        ranks, before = self._ranks, self._resources
        samples, loop_s = self._begin
        taken, spent_s = self._stats.samples - samples, self._loop_s() - loop_s
        rate = math.inf if before is None else before.consumer_samples_per_s
        if taken:
            rate = ranks * taken / spent_s if spent_s > 0 else math.inf
        here = min(self._trainer_cores, self._cores_here())
        there = self._samples.sources.cores(self._samples.opened)
        with self._lock:
            self._clock.cores = there / ranks
            link = self._clock.link_bytes_per_s if lately else self._clock.usual_link_bytes_per_s
            cores, store = self._clock.storage_cores, self._clock.store_samples_per_s
            proven = self._clock.proven_bytes_per_s
        bytes_per_s = _UNMEASURED_LINK if before is None else before.link_bytes_per_s
        if link is not None:
            known = None if before is None else before.link_bytes_per_s / ranks
            bytes_per_s = ranks * believed(link, proven, known, is_hasty=self._recorder.is_hasty)
            if self._relaying is not None and self._samples.sources.relays and self._is_beyond(here):
                bytes_per_s *= _BEYOND_BUSY
        # The cost of sending is not added: the cores that the clock has measured are those left over for ops.
        reads_per_s = math.inf if store is None else ranks * store
        nodes = self._nodes(lately)
        if nodes:  # each rank has its own; together they have the sum
            bytes_per_s, cores = (sum(n.rates[name] for n in nodes) for name in ("link_bytes_per_s", "storage_cores"))
            found = Resources(bytes_per_s, cores, ranks * here, rate, nodes=nodes)
        else:
            found = Resources(bytes_per_s, ranks * cores, ranks * here, rate, store_reads_per_s=reads_per_s)
        if self._relaying is None or not self._samples.sources.relays:
            return found
        with self._lock:
            return self._relaying.resources(found, self._samples.sources.relay_cores, ranks)

    def _cores_here(self) -> float:
        """Return the number of cores of this rank."""
        quota = quota_here()  # of all ranks on this host together; containers often have one
        return min(cores_here(), math.inf if quota is None else quota) / ranks_here(self._ranks)

    def _is_beyond(self, cores: float) -> bool:
        """Return whether the link may be faster than measured, because this trainer was the bottleneck at the time.

        If all samples go through relays, nothing new is learned about the link, and the earlier finding remains valid.
        """
        is_busy, was, links = self._is_busy(cores), *self._beyond
        if is_busy or self._clock.links > links:
            self._beyond = (is_busy, self._clock.links)
            return is_busy
        return was

    def _is_busy(self, cores: float) -> bool:
        """Return whether the trainer's cores, not the incoming samples, are the bottleneck of this epoch."""
        start_s, cpu_s = self._start
        return self._cpu_s() - cpu_s > _BUSY * cores * (time.monotonic() - start_s)

    def _cpu_s(self) -> float:
        """Return the CPU seconds spent here so far on fetching and finishing samples."""
        return self._stats.finish_cpu_s + (self._work_s or self._stats.fetch_cpu_s)

    def _nodes(self, lately: bool) -> tuple[Node, ...]:
        """Return the resources of each part of the data set; empty if all samples are held by the same nodes."""
        sources, samples = self._samples.sources, len(self._samples)
        if not sources.has_parts:
            return ()
        parts, relays = sources.parts(np.arange(samples)), sources.relays
        parts = replace(parts, holders=tuple(tuple(n for n in its if n not in relays) for its in parts.holders))
        with self._lock:
            return self._node_clocks.nodes(parts, samples, sources.cores_of_nodes, self._ranks, lately)

    def _in_parts(self, profile: Profile, resources: Resources) -> tuple[Profile, Resources]:
        """Return a profile that knows the part of each sample, if the resources list the same number of parts."""
        parts = self._samples.sources.parts(np.arange(len(self._samples))) if resources.nodes else None
        if parts is not None and parts.of is not None and len(parts.holders) == len(resources.nodes):
            return replace(profile, parts=parts.of), resources
        return profile, resources.without_nodes()

    def _loop_s(self) -> float:
        """Return the seconds for which the iterating thread was busy, regardless of the cuts."""
        return self._stats.consumer_s + (self._stats.collate_s if self._is_alone else 0.0)

    def _with_own_steps(self, profile: Profile) -> Profile:
        """Return a profile in which finishing includes the user's own steps, receiving and making batches."""
        with self._lock:
            self._receiving.library(cpu_s_of_threads(_LIBRARY))
            each_s, byte_s = self._receiving.costs_s
            is_known = self._receiving.is_known
        if not is_known:
            batches_s = 0.0 if self._is_alone else self._stats.collate_s / max(self._stats.samples, 1)
            own_s = self._own_s + batches_s
            if self._relaying is not None:  # relays are there to relieve these cores, so all of their work has to count
                own_s += self._stats.fetch_cpu_s / max(self._stats.samples, 1)
            return replace(profile, trainer_s=profile.trainer_s + np.float32(own_s)) if own_s else profile
        # Threads that receive have cores to themselves if there are more cores than workers.
        share = min(1.0, self._trainer_cores / self._cores_here())
        trainer_s = profile.trainer_s + np.float32(self._own_s + share * each_s)
        for column, route in enumerate(profile.routes if byte_s else ()):
            arriving = profile.payload_bytes if len(route.cuts) == 1 else profile.more["relay_bytes"]
            trainer_s[:, column] += np.float32(share * byte_s) * arriving[:, column]
        return replace(profile, trainer_s=trainer_s)

    def finish_s(self) -> NDArray[Any] | None:
        """Return the predicted seconds for finishing each sample here under the plan, if there is one."""
        if self.plan is None or self.profile is None or self.plan.routes != self.profile.routes:
            return None
        return self.profile.trainer_s[np.arange(len(self.profile)), self.plan.cut]

    def verdict(self) -> Verdict | None:
        """Return what would be the bottleneck of this rank if nothing were offloaded."""
        if self.profile is None or self._resources is None:
            return None
        raw, samples = self.profile.column(RAW), len(self.profile)
        bytes_each = float(self.profile.payload_bytes[:, raw].sum(dtype=float)) / samples
        cpu_each = float(self.profile.trainer_s[:, raw].sum(dtype=float)) / samples
        resources, ranks = self._resources, self._ranks
        return Verdict(
            consumer_per_s=resources.consumer_samples_per_s / ranks,
            io_per_s=resources.link_bytes_per_s / max(bytes_each, 1.0) / ranks,
            cpu_per_s=resources.trainer_cores / max(cpu_each, 1e-9) / ranks,
            store_per_s=self._clock.store_samples_per_s or math.inf,
        )

    def report(self) -> tuple[str, float, float] | None:
        """Return the bottleneck, and the shares of the time in which the consumer waits and relays are busy.

        None if nothing has happened since the last time.
        """
        now, plan = (self._stats.waited_s, self._stats.consumer_s), self.plan
        waited_s, worked_s = (after - before for after, before in zip(now, self._reported, strict=True))
        if waited_s + worked_s <= 0:
            return None
        self._reported = now
        told = Report.of(0.0, None if plan is None else plan.prediction, waited_s / (waited_s + worked_s))
        return told.bottleneck, told.waited_share, min(told.relay_share, 1.0)

    def _replan(self, resources: Resources, job: Job | None = None) -> None:
        """Make a plan and apply it, unless it is no longer wanted by then."""
        profile = self._estimate(self._epoch, with_relays=0 < resources.relay_cores < math.inf)
        if job is not None and not job.is_wanted:
            return
        bare_s = profile.trainer_s
        profile, resources = self._in_parts(self._with_own_steps(profile), resources)
        reserve = reserve_for(resources.storage_cores)
        options = replace(self._settings.options, reserve=reserve, headroom=HEADROOM)
        plan = make_plan(profile, resources, self._settings.policy, options, self._row)
        with self._lock:
            if job is not None and not job.is_wanted:
                return
            self.profile, self.plan, self._resources = profile, plan, resources
            self._bare_s = bare_s
            column = plan.cut
            if self._tried is not None:  # these are still tried, or nothing would be learnt about other cuts
                tried, columns = self._tried
                column = column.copy()
                column[tried] = columns
            self._samples.assignment = assigned(plan, column)
            if job is not None:
                self.revisions += 1
                self._replanning.settle(time.monotonic())

    def _plan_early(self, early: Early, job: Job) -> None:
        """Plan with what is known so far about an epoch."""
        start_s = time.monotonic()
        self._ask_for_sizes()
        if self._recorder.count(RAW):
            self._replan(self.resources(lately=True), job)
        now_s = time.monotonic()
        with self._lock:
            early.planned(now_s - start_s, now_s)

    def _estimate(self, epoch: int, *, with_relays: bool = False) -> Profile:
        told: dict[str, Any] = {"url": self._samples.url, "own_s": self._own_s}
        if self._resources is not None:
            told["resources"] = self._resources.to_json()
        dataset, is_early = self._samples.opened.fingerprint, self._early is not None
        relayed = None
        if self._relaying is not None and with_relays:
            with self._lock:
                self._relaying.turn()
                relayed = self._relaying.relayed
        return estimate(self._recorder, epoch, dataset=dataset, provenance=told, is_early=is_early, relayed=relayed)

    # --- told by the engine -------------------------------------------------------------------------------------------

    def began(self, request: int, source: int = 0) -> None:
        """Record that a request was sent to a node or a relay."""
        with self._lock:
            now_s = time.monotonic()
            if self._relaying is not None and source in self._samples.sources.relays:
                self._relaying.began(request, source, now_s)
                return
            self._clock.began(request, now_s)
            self._node_clocks.began(request, source, now_s)

    def received(self, request: int, sample: int, reply: Reply, asked: Cut, fetch: Fetch) -> None:
        """Record that a reply has arrived."""
        self._background.check()
        now_s = time.monotonic()
        with self._lock:
            clock = fetch.clock
            if self._relaying is not None and self._relaying.is_of(request):
                known = None if self.plan is None or self.profile is None else (self.plan, self.profile)
                self._relaying.received(request, sample, reply, fetch, known, now_s)
            else:
                told = (request, len(reply.payload), reply.cpu_s, clock.computing_s, now_s, clock.reading_s)
                self._clock.got(*told)
                self._node_clocks.got(*told)
        if reply.cut != asked and reply.reason in _CANNOT:
            self._recorder.refused(sample, asked)
        if self._replanning.is_due(now_s):
            self._look(now_s)

    def ended(self, request: int) -> None:
        """Record that a stream has ended."""
        with self._lock:
            now_s = time.monotonic()
            if self._relaying is not None and self._relaying.is_of(request):
                self._relaying.ended(request, now_s)
                return
            self._clock.ended(request, now_s)
            self._node_clocks.ended(request, now_s)

    def spent(self, samples: int, size_bytes: int, cpu_s: float) -> None:
        """Record what a request returned, and the CPU seconds of the thread that received it."""
        with self._lock:
            self._receiving.received(samples, size_bytes, cpu_s)
            self._work_s += cpu_s

    def overhead(self, cpu_s: float) -> None:
        """Record CPU seconds of this process that were spent on anything but finishing samples."""
        with self._lock:
            self._receiving.spent(cpu_s)
            self._work_s += cpu_s

    def finished(self, key: Key, reply: Reply, trace: Trace) -> None:
        """Record that a sample was finished here."""
        if reply.first is not None:  # the time near storage and at the relay is not the cost of a cut
            self._count_own(trace)
            self._finished_relayed(key, reply, trace)
            return
        told = Storage(reply.cpu_s, reply.op_s, reply.raw_bytes, reply.size)
        self._saw(key, reply.cut, len(reply.payload), trace, told)

    def _finished_relayed(self, key: Key, reply: Reply, trace: Trace) -> None:
        """Record how long finishing took here for a sample that came through a relay."""
        with self._lock:
            plan, bare_s, sample = self.plan, self._bare_s, key.sample
            if self._relaying is None or plan is None or bare_s is None or not sample < len(plan) == len(bare_s):
                return
            column = int(plan.cut[sample])
            if column < bare_s.shape[1] and plan.routes[column].cuts == (reply.first, reply.cut):
                self._relaying.finished(float(bare_s[sample, column]), trace.finishing_s - trace.own_s)

    def hear(self, event: str, *told: Any) -> None:
        """Record a row that a worker process wrote to a ledger; see `ledger` for the rows."""
        if event == "began":
            with self._lock:
                self._clock.began(*told)
        elif event == "ended":
            with self._lock:
                self._clock.ended(*told)
        elif event == "received":
            request, sample, size_bytes, cpu_s, computing_s, reading_s, now_s, refused, reason = told
            with self._lock:
                self._clock.got(request, size_bytes, cpu_s, computing_s, now_s, reading_s)
            if refused is not None and reason in _CANNOT:
                self._recorder.refused(sample, Cut.parse(refused))
        elif event == "finished":
            epoch, sample, cut, size_bytes, trace, cpu_s, op_s, raw_bytes, size = told
            storage = Storage(cpu_s, tuple(op_s), raw_bytes, (size[0], size[1]))
            key = Key(self._samples.seed, epoch, sample)
            self._saw(key, Cut.parse(cut), size_bytes, Trace.from_json(trace), storage)

    def _saw(self, key: Key, cut: Cut, size_bytes: int, trace: Trace, told: Storage) -> None:
        self._count_own(trace)
        if key.sample < len(self._samples):  # a repeated sample has a different box from the predicted one
            self._recorder.saw(key, cut, size_bytes, trace, told)
        early = self._early
        if early is not None:
            with self._lock:
                early.saw()
                is_due = early.is_due(time.monotonic())
            if is_due:
                self._background.start(lambda job: self._plan_early(early, job))

    def _count_own(self, trace: Trace) -> None:
        with self._lock:
            self._own_s += (_OWN_WEIGHT if self._own_s else 1.0) * (trace.own_s - self._own_s)

    def _look(self, now_s: float) -> None:
        """Start a new plan if the link or the storage node has changed since the plan was made."""
        self._replanning.looked(now_s)
        self._samples.sources.revisit()
        planned = self.plan.resources if self.plan is not None else None
        if planned is None:
            return
        seen = self.resources(lately=True)
        if moved(seen, planned):
            resources = seen.having(consumer_samples_per_s=planned.consumer_samples_per_s)
            self._background.start(lambda job: self._replan(resources, job))

    # --- from one run to the next -------------------------------------------------------------------------------------

    def _kept_at(self) -> KeptProfile:
        given = self._settings.profile
        if not self._settings.keep or given is not None:
            return KeptProfile(given if self._settings.keep else None, is_cache=False)
        job = (self._samples.pipeline.fingerprint, self._samples.opened.fingerprint, *self.cuts)
        return KeptProfile(cache_path(job), is_cache=True)

    def _recall(self, profile: Profile) -> None:
        """Use the results of an earlier run."""
        pipeline, dataset = self._samples.pipeline, self._samples.opened.fingerprint
        profile.require(pipeline=pipeline.fingerprint, dataset=dataset, recipe=in_words(pipeline))
        said = profile.provenance.get("resources")
        # Today's training step may be faster: a plan that leaves files whole because the last one was slow would hold
        # it up for an epoch, whereas a plan for a fast step holds up none.
        resources = Resources.from_json(said).having(consumer_samples_per_s=math.inf) if said else None
        own_s = profile.provenance.get("own_s", 0.0)
        self._recorder.recall(profile)
        self._resources = resources
        self._own_s = float(own_s) if isinstance(own_s, int | float) else 0.0
