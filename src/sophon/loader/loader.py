"""DataLoader: torch's arguments and meanings, with samples from a storage node or a path."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sophon.codec.cut import RAW, Cut
from sophon.errors import BudgetError, ConfigError
from sophon.link.credentials import Credentials
from sophon.loader.account.advice import Setup, Spent, count
from sophon.loader.account.bad import DEFAULT_BUDGET, BadSamples
from sophon.loader.account.explain import explain_epoch
from sophon.loader.account.progress import with_bar
from sophon.loader.account.stats import Stats
from sophon.loader.arguments import (
    at_least,
    bound_ahead,
    can_pin,
    check_hedge,
    check_not_told,
    relaxed_order,
    tuner_for,
    workers_kind,
)
from sophon.loader.dataset import RemoteDataset
from sophon.loader.epoch.batch import EMPTY
from sophon.loader.epoch.passes import Batching, Passes, Staff, Start
from sophon.loader.epoch.shared import Running, SharedBatches
from sophon.loader.machine.machine import MachineConfig
from sophon.loader.machine.tuner import Setting
from sophon.loader.order.log import OrderLog, Relaxed, Replay
from sophon.loader.order.ranks import Ranks, check_uneven, find_ranks
from sophon.loader.order.state import Place, State
from sophon.loader.order.turns import Turns
from sophon.loader.planning.planner import Planner, PlanSettings
from sophon.loader.planning.shared import MEASURED
from sophon.loader.sources.assignment import OffloadWarning
from sophon.loader.sources.prefix_cache import DEFAULT_BYTES, Cache
from sophon.loader.sources.sources import Address
from sophon.pipeline.pipeline import title
from sophon.plan.plan import Plan
from sophon.plan.policies import Options
from sophon.plan.resources import Resources
from sophon.process.cores import cores_here
from sophon.profile.explore import DEFAULT_SHARE
from sophon.profile.table import Profile
from sophon.profile.verdict import Verdict

_MANY = 0.1  # of an epoch's samples with a smaller cut than asked for are worth a warning


class DataLoader:
    """Iterates over the batches of a data set; every pass is the next epoch.

    The sequence of batches is a function of the data set, the pipeline, the batch size, the seed and the epoch:
    workers, threads or processes, cuts and failures on the way do not change it. Several ranks divide it among
    themselves in equal steps; `state_dict` says in a few numbers where it stands, and any number of ranks and workers
    can go on from there. Only with ``order="relaxed"`` does it also depend on what is finished first; the tensors of a
    sample stay the same.

    Args:
        data: Address ``grpc://host:port/dataset``, a list of addresses of nodes that hold copies or parts of a data
            set, a path, or a `RemoteDataset`.
        pipeline: A `Pipeline`, a list of ops that begins with `Decode`, or a transform of torchvision, timm or
            albumentations, or a callable, that takes a picture; not with a `RemoteDataset`, which has its own.
        batch_size: Samples in a batch.
        shuffle: In random order, another one each epoch.
        num_workers: Threads or processes that finish samples; 0 does it in the thread that iterates; "auto" follows the
            measured bottleneck: workers, requests under way and bytes read ahead.
        collate_fn: Makes a batch from a list of samples; by default as torch does. It may draw from the global
            generators of Python, NumPy and torch, as CutMix and MixUp do: they are seeded for each batch from the seed,
            the epoch and the batch's place in it, and put back afterwards.
        pin_memory: Copy batches into pinned memory, if there is an accelerator.
        drop_last: Leave out a last batch that is smaller.
        seed: Of the order and of all random ops.
        policy: "optimal", "sophon" or "fastflow" measure in the first epoch and plan for those that follow; "none",
            "all", "resize" and a cut such as "2:webp" are the same for all samples. By default "optimal", where the
            data lie behind a storage node.
        plan: One cut per sample; overrides the policy.
        profile: Where what was measured is kept for the next run: a path; by default the user's cache folder; False
            for nowhere.
        profile_share: Share of the samples that the first epoch sends in various codecs, to learn what they cost.
        allow_lossy: Whether policy or plan may use codecs that change the tensors.
        target_transform: Applied to labels; seeded for each sample, as your own steps are, and run where they are run.
        columns: Further columns to bring along; "id" is the sample's id.
        buffer_bytes: Bound on bytes of samples that are asked for and not yet handed out.
        deadline_s: How long nothing may come before an error is raised.
        fallback: Path of the same files, which are read directly while no storage node answers that holds them.
        hedge: Ask a second time for what is late, at another node if there is one: after so many seconds of silence, or
            True to learn from the others how long that is. Needs workers.
        order: "strict" for batches that are the same in every run; "relaxed", or `Relaxed(max_delay)`, for batches of
            what is finished first, so that slow samples hold up no others (`loader.log` records the order);
            `Replay(log)` for the batches of a recorded run.
        max_requests: Requests under way at once; by default 2 for each node; "auto" workers find a number of their own.
        workers: "threads" or "processes". By default processes where code of your own is run (a step of the pipeline,
            target_transform or collate_fn), which may hold Python's lock and draw from the global generators, and
            threads where none is. Either way this process fetches and plans, and the batches are the same.
        multiprocessing_context: How processes are started: "fork" where there is one, "spawn" or "forkserver".
        prefetch_factor: The most batches per worker that are made ahead; by default `buffer_bytes` alone bounds them.
        persistent_workers: Keep processes between epochs. Otherwise those of the next epoch are forked when it begins,
            and see your objects as they are then.
        rank: Which of several training processes this is; by default as torch.distributed or torchrun's environment
            say. Give rank=0, world_size=1 for a loader that one rank uses alone, such as for validation.
        world_size: How many training processes there are.
        uneven: What to do if samples cannot be shared evenly: "pad" with some from the beginning of the order, as
            torch's DistributedSampler does, "drop" the last ones, or "raise".
        on_error: What becomes of a sample that cannot be had: "raise" its error, "substitute" the next good one of the
            data set, or "skip" it, which makes its batch smaller.
        error_budget: How many samples may be bad: a number, or a share of the data set; more are a `BudgetError`.
        output: "torch" tensors, or "numpy" arrays, which need no torch.
        cache: Keep what the ops before the first random one give, and run them once: True, or a cut such as "1:webp".
            Instead of a policy.
        cache_dir: Where; by default the user's cache folder.
        cache_bytes: How many bytes may be kept of this data set and these ops.
        token: Shown to the storage node, as are the next three: see `RemoteDataset`.
        tls_ca: PEM file of the authority that signed the node's certificate.
        tls_cert: PEM file of this trainer's certificate.
        tls_key: PEM file of its key.
    """

    # long: the signature has 45 lines, and each argument is handed to what it is for in one place.
    def __init__(
        self,
        data: Address | RemoteDataset,
        pipeline: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        num_workers: int | str = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        *,
        seed: int = 0,
        policy: str | Cut | None = None,
        plan: Any = None,
        profile: str | Path | bool | None = None,
        profile_share: float = DEFAULT_SHARE,
        allow_lossy: bool = False,
        target_transform: Callable[[Any], Any] | None = None,
        columns: Sequence[str] = (),
        buffer_bytes: int = MachineConfig.buffer_bytes,
        deadline_s: float = MachineConfig.deadline_s,
        fallback: str | Path | None = None,
        hedge: bool | float = False,
        order: str | Relaxed | Replay = "strict",
        max_requests: int | None = None,
        workers: str | None = None,
        multiprocessing_context: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: str = "pad",
        on_error: str = "raise",
        error_budget: float = DEFAULT_BUDGET,
        output: str = "torch",
        cache: bool | str | Cut | Cache = False,
        cache_dir: str | Path | None = None,
        cache_bytes: int = DEFAULT_BYTES,
        token: str | None = None,
        tls_ca: str | Path | None = None,
        tls_cert: str | Path | None = None,
        tls_key: str | Path | None = None,
    ) -> None:
        at_least("batch_size", batch_size, 1)
        at_least("buffer_bytes", buffer_bytes, 1)
        if max_requests is not None:
            at_least("max_requests", max_requests, 1)
        check_hedge(hedge)
        if hedge and num_workers == 0:
            raise ConfigError("hedge: asking twice needs threads that fetch; use num_workers of at least 1")
        if not deadline_s > 0:  # not NaN either
            raise ConfigError(f"deadline_s: expected seconds above 0, got {deadline_s!r}")
        if isinstance(data, RemoteDataset):
            if pipeline is not None:
                raise ConfigError("a RemoteDataset has its own pipeline; give one of them")
            told: dict[str, bool] = {
                "seed": seed not in (0, data.seed),
                "policy": policy is not None and policy not in MEASURED,
                "plan": plan is not None,
                "target_transform": target_transform is not None,
                "columns": bool(columns),
                "on_error": on_error != "raise",
                "error_budget": error_budget != DEFAULT_BUDGET,
                "output": output != "torch",
                "cache": cache is not False,
                "fallback": fallback is not None,
                "token": (token, tls_ca, tls_cert, tls_key) != (None,) * 4,
            }
            check_not_told(told)
            self.dataset = data
            policy = policy or data.measures
        else:
            if pipeline is None:
                raise ConfigError(
                    "pipeline: expected a Pipeline or a torchvision transform, got None; the least is ToTensor()"
                )
            self.dataset = RemoteDataset(
                data,
                pipeline,
                seed=seed,
                policy=_policy_or_plan(policy, plan),
                allow_lossy=allow_lossy,
                target_transform=target_transform,
                columns=columns,
                deadline_s=deadline_s,
                fallback=fallback,
                on_error=on_error,
                error_budget=error_budget,
                output=output,
                cache=cache if cache is False or isinstance(cache, Cache) else Cache(cache, cache_dir, cache_bytes),
                credentials=Credentials(token, tls_ca, tls_cert, tls_key),
            )
        self.batch_size = batch_size
        self.shuffle = shuffle
        samples = self.dataset.samples
        requests = max_requests or MachineConfig.max_requests * samples.sources.nodes
        kind = workers_kind(workers, num_workers, self._own_code(collate_fn))
        self.num_workers: int = cores_here() if isinstance(num_workers, str) else num_workers
        self.collate_fn = collate_fn
        self.drop_last = drop_last
        self.pin_memory = can_pin(pin_memory, self.dataset.output)
        self._told_ranks = (rank, world_size)
        self._batching = Batching(batch_size, shuffle, drop_last, check_uneven(uneven), collate_fn, self.pin_memory)
        self._place = Place()
        self._spent: tuple[Spent, Plan | None] | None = None  # by the latest pass that ended, and under which plan
        self._warned = False
        self.stats = Stats()
        relaxed = relaxed_order(order)
        result_bytes = self.dataset.finishing.result_bytes
        ahead_bytes = bound_ahead(buffer_bytes, prefetch_factor, self.num_workers, batch_size, result_bytes)
        config = MachineConfig(
            buffer_bytes=ahead_bytes,
            deadline_s=deadline_s,
            max_requests=requests,
            request_samples=min(MachineConfig.request_samples, self.dataset.opened.max_samples),
            max_delay=None if relaxed is None else relaxed.max_delay,
            nodes=samples.sources.nodes,
            has_fallback=samples.sources.has_fallback,
            hedge=hedge,
        )
        settings = PlanSettings(
            policy=policy if isinstance(policy, str) and policy in MEASURED else "optimal",
            options=Options(allow_lossy=allow_lossy),
            share=profile_share,
            profile=None if profile is None or isinstance(profile, bool) else Path(profile),
            keep=profile is not False,
        )
        cores = float(min(max(self.num_workers, 1), cores_here()))
        should_plan = self._should_plan(policy, plan)
        self._planner = Planner(samples, settings, cores, self.stats, self.num_workers == 0) if should_plan else None
        self._passes = Passes(
            samples,
            self.dataset.finishing,
            self.bad_samples,
            self._batching,
            config,
            Staff(self.num_workers, kind, multiprocessing_context, persistent_workers),
            self.stats,
            self._planner,
            tuner_for(kind, max_requests, requests, config.buffer_bytes) if num_workers == "auto" else None,
            order.opened(self.dataset.opened.fingerprint, batch_size) if isinstance(order, Replay) else None,
        )
        self._setup = Setup(
            workers=self.num_workers,
            requests=requests,
            kind=kind,
            cores=cores_here(),
            is_remote=self.dataset.transport.is_remote,
            bad=0,
            on_error=self.bad_samples.policy,
            cuts_by=self._cuts_by(),
            is_auto=num_workers == "auto",
            finds_requests=num_workers == "auto" and max_requests is None,
            is_persistent=persistent_workers,
            has_collate=collate_fn is not None,
            store=self.dataset.opened.store,
        )
        len(self)  # impossible ranks, or samples that must be shared evenly and cannot be, are found here

    def _own_code(self, collate_fn: Any) -> str:
        """Return what the loader runs of the user's own, in words; "" for nothing."""
        finishing = self.dataset.finishing
        first = finishing.pipeline.first_call
        names = [title(finishing.pipeline.ops[first])] if first < len(finishing.pipeline) else []
        names += ["target_transform"] if finishing.target_transform is not None else []
        names += ["collate_fn"] if collate_fn is not None else []
        return " and ".join(names)

    def _should_plan(self, policy: Any, plan: Any) -> bool:
        """Return whether this loader measures and plans for itself."""
        samples = self.dataset.samples
        if self.dataset.is_cached and policy is not None:
            raise ConfigError(f"policy {policy!r}: a cache decides by itself what is done before it; give no policy")
        if plan is not None or self.dataset.is_cached or (policy is not None and policy not in MEASURED):
            return False
        if samples.assignment.cuts != (RAW,) or not self.dataset.transport.is_remote:
            return False
        return self.dataset.pipeline.max_cut > 0

    def _cuts_by(self) -> str:
        """Return what chooses the cuts; see `Setup`."""
        if self._planner is not None:
            return "planner"
        if self.dataset.is_cached:
            return "cache"
        if self.dataset.pipeline.max_cut == 0:
            return "nothing"
        return "policy" if self.dataset.samples.assignment.number_of is None else "plan"

    def __repr__(self) -> str:
        cuts = self.dataset.cuts_in_words if self._planner is None else f"policy={self._planner.policy!r}"
        number = count(self.setting.workers, self._setup.kind) if self.num_workers else "0"
        workers = f"'auto' ({number})" if self._setup.is_auto else number
        return f"DataLoader({self.dataset.title}, batch_size={self.batch_size}, {cuts}, num_workers={workers})"

    @property
    def plan(self) -> Plan | None:
        """The plan of this epoch: `print(loader.plan.explain())` says what and why.

        None where this loader does not plan, and until the epoch after the one that was measured begins.
        """
        return None if self._planner is None else self._planner.plan

    @property
    def log(self) -> OrderLog | None:
        """In relaxed order, which samples came in which batches: `Replay(loader.log)` gives the same ones again."""
        return self._passes.log

    @property
    def setting(self) -> Setting:
        """How many workers, requests and bytes ahead there are; with num_workers="auto" it follows the bottleneck."""
        return self._passes.setting

    @property
    def profile(self) -> Profile | None:
        """What samples cost, as far as it was measured: `print(loader.profile.explain())` says it in words."""
        return None if self._planner is None else self._planner.profile

    @property
    def resources(self) -> Resources | None:
        """What the loader's own clocks say of link, storage node, trainer and consumer."""
        return None if self._planner is None else self._planner.resources()

    @property
    def verdict(self) -> Verdict | None:
        """What holds this training back, from the loader's own clocks; None until an epoch was measured."""
        return None if self._planner is None else self._planner.verdict()

    @property
    def revisions(self) -> int:
        """How often a plan was made anew in the middle of an epoch."""
        return 0 if self._planner is None else self._planner.revisions

    @property
    def epoch(self) -> int:
        """The epoch of the next pass."""
        return self._place.next_epoch

    @property
    def ranks(self) -> Ranks:
        """Which of several training processes this is."""
        return find_ranks(*self._told_ranks)

    @property
    def bad_samples(self) -> BadSamples:
        """The samples that could not be had so far, with the reasons; `bad_samples.save(path)` writes them down."""
        return self.dataset.bad_samples

    def set_epoch(self, epoch: int) -> None:
        """Go on with this epoch; otherwise every pass is the next one, from 0.

        The epoch in which a state was loaded goes on where it was left; any other one begins at its beginning.
        """
        at_least("epoch", epoch, 0)
        self._place.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the training loop stands: a small dict of JSON values.

        It counts the batches that were handed out, not those that are being made; so it may be taken at any time. It is
        the same on all ranks, except in the middle of an epoch in relaxed order: there each rank has its own, with the
        few samples that left out of turn, at most `max_delay` × batch_size late and as many early ones.
        """
        return self._state(*self._place.at).to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken, also with another number of workers or ranks, or another batch size.

        Raises:
            ArtifactError: It belongs to another data set, pipeline, seed or shuffling; or it was taken in the middle of
                an epoch in relaxed order, by another rank or with another number of them.
        """
        saved = State.from_dict(state)
        saved.require(self._state(saved.epoch, saved.cursor))
        turns = None if saved.turns is None else Turns.from_dict(saved.turns, saved.cursor, self.ranks)
        self._place.load(saved.epoch, saved.cursor, self._left(saved.cursor) == 0, turns)

    def _state(self, epoch: int, cursor: int, turns: Turns | None = None) -> State:
        return State(
            seed=self.dataset.seed,
            epoch=epoch,
            cursor=cursor,
            samples=len(self.dataset),
            shuffle=self.shuffle,
            dataset=self.dataset.opened.fingerprint,
            pipeline=self.dataset.pipeline.fingerprint,
            plan=self.revisions,
            turns=None if turns is None else turns.to_dict(),
        )

    def _left(self, cursor: int) -> int:
        """Return how many batches are left after that many samples."""
        return self._batching.count(len(self.dataset) - cursor, self.ranks)

    def __len__(self) -> int:
        """Return the batches of a whole epoch, the same number on all ranks."""
        return self._left(0)

    def __iter__(self) -> Iterator[Any]:
        return self._begin(Running())

    def _begin(self, running: Running) -> Generator[Any]:
        """Return the next pass; its engine, if it has one, is added to those that run when it does."""
        epoch, cursor, turns = self._place.begin()
        self.dataset.set_epoch(epoch)
        return self._pass(epoch, cursor, self.ranks, turns, running)

    def shared(self) -> SharedBatches:
        """Return the batches of the next epoch for several threads to draw from; each goes to exactly one of them.

        Made for one thread per accelerator: ``with loader.shared() as batches:`` start threads that run
        ``for batch in batches:``. State and counts are those of all of them together.
        """
        running = Running()
        return SharedBatches(self._begin(running), running.stop)

    def progress(self, description: str | None = None, console: Any = None) -> Iterator[Any]:
        """Iterate over the next epoch and show a bar with its progress, its speed and how long it waited.

        Args:
            description: What stands beside the bar; by default the epoch.
            console: A `rich.console.Console` to show it on; by default the error stream.
        """
        batches = iter(self)
        place, ranks, start_s = self._place, self.ranks, time.monotonic()
        before, waited_s = self.stats.samples, self.stats.waited_s

        def note() -> str:
            wall_s = max(time.monotonic() - start_s, 1e-9)
            waited = (self.stats.waited_s - waited_s) / wall_s
            return f"{(self.stats.samples - before) / wall_s:,.0f} samples/s, waited {min(waited, 1.0):.0%} of the time"

        done = place.cursor // (self.batch_size * ranks.size)
        shown: Iterator[Any] = with_bar(batches, len(self), done, description or f"epoch {place.epoch}", note, console)
        return shown

    def explain(self) -> str:
        """Return in words where the time of the last epoch went, and what would help."""
        if self._spent is None:
            return "No epoch was run yet: iterate over the loader first."
        spent, plan = self._spent
        setup = replace(
            self._setup,
            workers=self.setting.workers if self.num_workers else 0,
            requests=self.setting.requests,
            bad=len(self.bad_samples),
        )
        return explain_epoch(spent, setup, self.verdict, plan)

    def _pass(self, epoch: int, cursor: int, ranks: Ranks, turns: Turns | None, running: Running) -> Generator[Any]:
        before, start_s = self.stats.to_dict(), time.monotonic()
        if turns is None:
            turns = self._passes.turns(epoch, cursor, ranks)
        batches = self._passes.batches(Start(epoch, cursor, ranks, turns), running)
        handed, is_whole = 0, False
        try:
            for batch, positions in batches:
                cursor = min(cursor + self.batch_size * ranks.size, len(self.dataset))
                # After the last batch nothing is left out of turn, and the state is that of all ranks.
                turns = None if turns is None or not self._left(cursor) else turns.after(positions)
                self._place.move(epoch, cursor, turns)
                if batch is EMPTY:
                    self._check_empty(ranks)
                    continue
                handed += 1
                yield batch
            is_whole = True
            self._place.end(epoch)
        finally:
            batches.close()
            spent = self.stats.since(before)
            self._spent = Spent(epoch, time.monotonic() - start_s, spent, handed, is_whole), self.plan
        self._warn_of_smaller_cuts(spent.samples, spent.smaller_cuts)

    def _check_empty(self, ranks: Ranks) -> None:
        if ranks.size > 1:
            raise BudgetError(
                f"all {self.batch_size} samples of a batch are bad; to leave it out would make rank {ranks.rank} take "
                f"fewer steps than the others, which would wait for ever. Use on_error='substitute'."
            )

    def _warn_of_smaller_cuts(self, samples: int, smaller: int) -> None:
        if self._planner is None and smaller > _MANY * samples and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.dataset.url} sent {smaller:,} of {samples:,} samples as raw files instead of making the cut "
                "that was asked for (overload, or files that cannot be cut that way); the tensors are the same. "
                "sophon_smaller_cuts_total on its --metrics-port counts the reasons.",
                OffloadWarning,
                stacklevel=3,
            )


def _policy_or_plan(policy: str | Cut | None, plan: Any) -> Any:
    """Return what a data set is told of cuts: a plan, or a policy that is the same for all samples."""
    if plan is not None:
        return Path(plan) if isinstance(plan, str) else plan
    return None if policy in MEASURED else policy
