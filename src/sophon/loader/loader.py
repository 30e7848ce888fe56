"""DataLoader: torch's arguments and meanings, with samples from a storage node or a path."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from sophon.codec.cut import RAW, Cut
from sophon.errors import BudgetError, ConfigError
from sophon.loader.arguments import (
    at_least,
    can_pin,
    check_hedge,
    check_not_told,
    check_workers,
    cores_here,
    relaxed_order,
    tuner_for,
)
from sophon.loader.bad import DEFAULT_BUDGET, BadSamples
from sophon.loader.batch import EMPTY
from sophon.loader.cuts import OffloadWarning
from sophon.loader.dataset import RemoteDataset
from sophon.loader.explain import Setup, Spent, explain_epoch
from sophon.loader.machine import MachineConfig
from sophon.loader.order_log import OrderLog, Relaxed, Replay
from sophon.loader.passes import Batching, Passes, ProcessPasses, Start, ThreadPasses
from sophon.loader.planner import Planner, PlanSettings
from sophon.loader.prefix_cache import DEFAULT_BYTES
from sophon.loader.progress import with_bar
from sophon.loader.ranks import Ranks, check_uneven, find_ranks
from sophon.loader.shared import Running, SharedBatches
from sophon.loader.sources import Address
from sophon.loader.state import Place, State
from sophon.loader.stats import Stats
from sophon.loader.tuner import Setting
from sophon.loader.turns import Turns
from sophon.plan.plan import Plan
from sophon.plan.policies import Options
from sophon.plan.resources import Resources
from sophon.profile.explore import DEFAULT_SHARE
from sophon.profile.table import Profile
from sophon.profile.verdict import Verdict

MEASURED = ("optimal", "sophon", "fastflow")
_MANY = 0.1  # of an epoch's samples with a smaller cut than asked for are worth a warning


class DataLoader:
    """Iterates over the batches of a data set; every pass is the next epoch.

    The sequence of batches is a function of the data set, the pipeline, the batch size, the seed and the epoch:
    workers, threads or processes, cuts and failures on the way change nothing of it. Several ranks divide it among
    themselves in equal steps; `state_dict` says in a few numbers where it stands, and any number of ranks and workers
    can go on from there. Only with ``order="relaxed"`` it also depends on what is finished first; the tensors of a
    sample stay the same.

    Args:
        data: Address ``grpc://host:port/dataset``, a list of addresses of nodes that hold the same data set, a path, or
            a `RemoteDataset`.
        pipeline: A `Pipeline`, a list of ops or a torchvision transform; not with a `RemoteDataset`, which has its own.
        batch_size: Samples in a batch.
        shuffle: In random order, another one each epoch.
        num_workers: Threads or processes that finish samples; 0 does it in the thread that iterates; "auto" follows the
            measured bottleneck: threads, requests under way and bytes read ahead.
        collate_fn: Makes a batch of a list of samples; by default as torch does.
        pin_memory: Copy batches into pinned memory, if there is an accelerator.
        drop_last: Leave out a last batch that is smaller.
        seed: Of the order and of all random ops.
        policy: "optimal", "sophon" or "fastflow" measure in the first epoch and plan for those that follow; "none",
            "all", "resize" and a cut such as "2:webp" are the same for all samples. By default "optimal", where the
            data lie behind a storage node and workers are threads.
        plan: One cut per sample; overrides the policy.
        profile: Where what was measured is kept for the next run: a path; by default the user's cache folder; False
            for nowhere.
        profile_share: Share of the samples that the first epoch sends in various codecs, to learn what they cost.
        allow_lossy: Whether a plan may use codecs that change the tensors.
        target_transform: Applied to labels.
        columns: Further columns to bring along; "id" is the sample's id.
        buffer_bytes: Bound on bytes of samples that are asked for and not yet handed out.
        deadline_s: How long nothing may come before an error is raised.
        fallback: Path of the same files, which are read directly while no storage node answers.
        hedge: Ask a second time for what is late, at another node if there is one: after so many seconds of silence, or
            True to learn from the others how long is long. Needs worker threads.
        order: "strict" for batches that are the same in every run; "relaxed", or `Relaxed(max_delay)`, for batches of
            what is finished first, so that slow samples hold up no others (`loader.log` records the order);
            `Replay(log)` for the batches of a recorded run.
        max_requests: Requests under way at once; by default 2 for each node; "auto" workers find a number of their own.
        workers: "threads", or "processes" where the pipeline has steps that hold Python's lock.
        multiprocessing_context: For processes: "fork", "spawn" or "forkserver".
        prefetch_factor: For processes: batches per worker that are made ahead, as in torch.
        persistent_workers: For processes: keep them between epochs, as in torch.
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
        tls_ca: PEM file of who vouches for the node.
        tls_cert: PEM file of this trainer's certificate.
        tls_key: PEM file of its key.
    """

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
        workers: str = "threads",
        multiprocessing_context: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: str = "pad",
        on_error: str = "raise",
        error_budget: float = DEFAULT_BUDGET,
        output: str = "torch",
        cache: bool | str | Cut = False,
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
        check_workers(workers, num_workers, order)
        check_hedge(hedge, workers, num_workers)
        if not deadline_s > 0:  # nor not a number
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
        else:
            if pipeline is None:
                raise ConfigError("pipeline: expected a Pipeline or a torchvision transform, got none")
            self.dataset = RemoteDataset(
                data,
                pipeline,
                seed=seed,
                policy=None if policy in MEASURED else policy,
                plan=plan,
                target_transform=target_transform,
                columns=columns,
                deadline_s=deadline_s,
                fallback=fallback,
                on_error=on_error,
                error_budget=error_budget,
                output=output,
                cache=cache,
                cache_dir=cache_dir,
                cache_bytes=cache_bytes,
                token=token,
                tls_ca=tls_ca,
                tls_cert=tls_cert,
                tls_key=tls_key,
            )
        self.batch_size = batch_size
        self.shuffle = shuffle
        sources = self.dataset.sources
        requests = max_requests or MachineConfig.max_requests * sources.nodes
        self.num_workers: int = cores_here() if isinstance(num_workers, str) else num_workers
        self.collate_fn = collate_fn
        self.drop_last = drop_last
        self.pin_memory = can_pin(pin_memory, self.dataset.output)
        self._told_ranks = (rank, world_size)
        self._batching = Batching(batch_size, shuffle, drop_last, check_uneven(uneven), collate_fn, self.pin_memory)
        self._place = Place()
        self._spent: Spent | None = None
        self._warned = False
        self.stats = Stats()
        relaxed = relaxed_order(order)
        config = MachineConfig(
            buffer_bytes=buffer_bytes,
            deadline_s=deadline_s,
            max_requests=requests,
            request_samples=min(MachineConfig.request_samples, self.dataset.opened.max_samples),
            max_delay=None if relaxed is None else relaxed.max_delay,
            nodes=sources.nodes,
            has_fallback=sources.has_fallback,
            hedge=hedge,
        )
        self._uses_processes = workers == "processes" and self.num_workers > 0
        settings = PlanSettings(
            policy=policy if isinstance(policy, str) and policy in MEASURED else "optimal",
            options=Options(allow_lossy=allow_lossy),
            share=profile_share,
            profile=None if profile is None or isinstance(profile, bool) else Path(profile),
            keep=profile is not False,
        )
        cores = float(min(max(self.num_workers, 1), cores_here()))
        should_plan = self._should_plan(policy, plan)
        self._planner = Planner(self.dataset, settings, cores, self.stats) if should_plan else None
        self._passes: Passes
        if self._uses_processes:
            options = {
                "multiprocessing_context": multiprocessing_context,
                "prefetch_factor": prefetch_factor,
                "persistent_workers": persistent_workers,
            }
            setting = Setting(self.num_workers, self.num_workers, buffer_bytes)
            self._passes = ProcessPasses(self.dataset, self._batching, setting, self.stats, options)
        else:
            tuner = tuner_for(max_requests, requests, buffer_bytes) if num_workers == "auto" else None
            replay = order.opened(self.dataset.opened.fingerprint, batch_size) if isinstance(order, Replay) else None
            self._passes = ThreadPasses(
                self.dataset, self._batching, config, self.num_workers, self.stats, self._planner, tuner, replay
            )
        len(self)  # ranks that cannot be, or samples that must be shared evenly and cannot, are found here

    def _should_plan(self, policy: Any, plan: Any) -> bool:
        """Return whether this loader measures and plans for itself."""
        if self.dataset.is_cached and policy is not None:
            raise ConfigError(f"policy {policy!r}: a cache decides by itself what is done before it; give no policy")
        if plan is not None or self.dataset.is_cached or (policy is not None and policy not in MEASURED):
            return False
        if self.dataset.assignment.cuts != (RAW,) or not self.dataset.transport.is_remote:
            return False
        if self._uses_processes:
            if policy is not None:
                raise ConfigError(
                    f"policy {policy!r} measures first and plans then, which worker processes cannot; use "
                    "workers='threads', or give the plan that `sophon plan` makes of a profile"
                )
            return False
        return self.dataset.pipeline.max_cut > 0

    @property
    def plan(self) -> Plan | None:
        """The plan of this epoch, if this loader plans: `print(loader.plan.explain())` says what and why."""
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
        """Return how many batches are left behind so many samples."""
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
        """Iterate over the next epoch beside a bar that shows how far it is, its speed and how long it waited.

        Args:
            description: Beside the bar; by default the epoch.
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
        setup = Setup(
            workers=self.setting.workers if self.num_workers else 0,
            requests=self.setting.requests,
            kind="processes" if self._uses_processes else "threads",
            cores=cores_here(),
            is_remote=self.dataset.transport.is_remote,
            bad=len(self.bad_samples),
            on_error=self.bad_samples.policy,
            plans=self._planner is not None,
        )
        return explain_epoch(self._spent, setup, self.verdict, self.plan)

    def _pass(self, epoch: int, cursor: int, ranks: Ranks, turns: Turns | None, running: Running) -> Generator[Any]:
        before, start_s = self.stats.to_dict(), time.monotonic()
        if turns is None:
            turns = self._passes.turns(epoch, cursor, ranks)
        batches = self._passes.batches(Start(epoch, cursor, ranks, turns), running)
        handed, is_whole = 0, False
        try:
            for batch, positions in batches:
                cursor = min(cursor + self.batch_size * ranks.size, len(self.dataset))
                # Behind the last batch nothing is left out of turn, and the state is that of all ranks.
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
            self._spent = Spent(epoch, time.monotonic() - start_s, spent, handed, is_whole)
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
                "that was asked for (overload, or files that cannot be cut so); the tensors are the same. "
                "sophon_smaller_cuts_total on its --metrics-port counts the reasons.",
                OffloadWarning,
                stacklevel=3,
            )
