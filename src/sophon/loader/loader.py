"""DataLoader: torch's arguments and meanings, with samples from a storage node or a path."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, Self

from sophon.codec.cut import RAW, Cut
from sophon.errors import BudgetError, ConfigError, RankError
from sophon.link.credentials import Credentials
from sophon.loader.account.advice import Setup, Spent, count
from sophon.loader.account.bad import BadSamples
from sophon.loader.account.explain import explain_epoch
from sophon.loader.account.progress import with_bar
from sophon.loader.account.stats import Stats
from sophon.loader.arguments import (
    Own,
    batch_size_of,
    bound_ahead,
    can_pin,
    collate_of,
    device_of,
    divided,
    order_of,
    relaxed_order,
    sampling_of,
    tuner_for,
    unwrapped,
    workers_kind,
    workers_of,
)
from sophon.loader.dataset import RemoteDataset
from sophon.loader.epoch.batch import EMPTY
from sophon.loader.epoch.passes import Batching, Passes, Staff, Start
from sophon.loader.epoch.shared import Latest, Running, SharedBatches
from sophon.loader.machine.machine import MachineConfig
from sophon.loader.machine.tuner import Setting
from sophon.loader.options import Faults, OnError, Output, Ranks, Workers, at_least
from sophon.loader.order.log import OrderLog, Relaxed, Replay
from sophon.loader.order.order import Order
from sophon.loader.order.ranks import Rank
from sophon.loader.order.state import Place, State
from sophon.loader.order.turns import Turns
from sophon.loader.planning.planner import Planner, PlanSettings
from sophon.loader.planning.shared import MEASURED
from sophon.loader.planning.watch import Watch
from sophon.loader.sources.assignment import OffloadWarning
from sophon.loader.sources.prefix_cache import Cache
from sophon.loader.sources.sources import Address
from sophon.loader.torch_arguments import TorchArguments
from sophon.pipeline.pipeline import title
from sophon.plan.plan import Plan
from sophon.plan.policies import Options
from sophon.plan.resources import Resources
from sophon.process.cores import cores_here
from sophon.profile.table import Profile
from sophon.profile.verdict import Verdict

_TORCHS = {field.name for field in fields(TorchArguments)}
_FIXED = _TORCHS | {"dataset"}
_MANY = 0.1  # of an epoch's samples with a smaller cut than asked for are worth a warning


class DataLoader:
    """Iterates over the batches of a data set; every pass is the next epoch.

    The sequence of batches is a function of the data set, the pipeline, the batch size, the seed and the epoch: the
    number and kind of workers, cuts and failures do not change it. Several ranks divide it among
    themselves in equal steps; `state_dict` describes the position in a few numbers, and any number of ranks and workers
    can continue from there. Only with ``order="relaxed"`` does it also depend on which samples are finished first; the
    tensors of a sample stay the same.

    With an address or a path first, the second argument is the pipeline, and torch's arguments are keywords. With a
    data set first, torch's positional order holds: ``DataLoader(dataset, 64, True)``. Unless noted below, torch's
    arguments have torch's meanings.

    Args:
        data: Address ``grpc://host:port/dataset``, a list of addresses of nodes that hold copies or parts of a data
            set, a path, a torchvision or Hugging Face data set that consists of files, `from_dataset(…)` for a class of
            your own, a `RemoteDataset`, or torch's `Subset` or `ConcatDataset` of any of these.
        pipeline: A `Pipeline`, a list of ops that begins with `Decode`, or a torchvision, timm or albumentations
            transform or a callable that takes a picture; not with a `RemoteDataset`, which has its own, nor with an
            object that has a transform.
        positional: Torch's further arguments, after a data set.
        batch_size: Samples in a batch; None for single samples, which are not collated.
        shuffle: Whether samples come in random order, a different one in each epoch.
        sampler: Determines the order instead, as in torch, for this rank only. It must have a length.
        batch_sampler: Determines the batches instead.
        num_workers: Number of threads or processes that finish samples; 0 means the iterating thread; "auto" adjusts
            the workers, the concurrent requests and the bytes read ahead to the measured bottleneck. See `Workers` for
            more. By default "auto" with a storage node, and 0 without one.
        collate_fn: Makes a batch from a list of samples; by default torch's. It may draw from the global
            generators of Python, NumPy and torch, as CutMix and MixUp do: they are seeded for each batch from the seed,
            the epoch and the batch's place in it, and restored afterwards.
        pin_memory: Whether to copy batches into pinned memory, if there is an accelerator.
        drop_last: Whether to leave out an incomplete last batch.
        timeout: How many seconds to wait for the next batch; 0 to wait as long as it takes.
        worker_init_fn: Called in each worker process with its number when it starts.
        multiprocessing_context: How processes are started: "fork" if available, "spawn" or "forkserver". It also
            selects processes where threads would do.
        generator: Supplies the seed, if `seed` is not given.
        prefetch_factor: Largest number of batches made ahead per worker; by default only bytes are bounded.
        persistent_workers: Keep processes between epochs. Otherwise those of the next epoch are forked when it begins,
            and see your objects as they are then.
        pin_memory_device: Device of the pinned memory; only the current accelerator is supported.
        in_order: False means ``order="relaxed"``.
        seed: Seed of the order and of all random ops; 0 by default.
        policy: "optimal" measures and plans from the first samples on; "sophon" and "fastflow" measure in the first
            epoch and plan for the following ones; "none", "all", "resize" and a cut such as "2:webp" are the same for
            all samples; a `Plan`, the `Path` of one, or one cut per sample is a plan. By default "optimal" with a
            storage node. `Planning(…)` sets more: where a profile is kept, whether lossy codecs are allowed.
        order: "strict" for batches that are the same in every run; "relaxed", or `Relaxed(max_delay)`, for batches of
            the samples that are finished first, so that slow samples do not hold up others (`loader.log` records the
            order); `Replay(log)` for the batches of a recorded run.
        on_error: What to do with a sample that cannot be loaded: "raise" its error, "substitute" the next good one in
            the data set, or "skip" it, which makes its batch smaller; `OnError(…)` to limit how many may be bad.
        output: "torch" tensors, or "numpy" arrays, which need no torch; `Output(…)` to include further columns, or
            to have batches on a device.
        target_transform: Applied to labels; seeded for each sample and run in the same place as your own steps.
        credentials: Credentials for the storage node; from the environment by default.
        faults: What to do when nodes are late or do not answer: `Faults(deadline_s=…, hedge=…, fallback=…)`.
        cache: Keep the results of the ops before the first random one, and run those ops once: True, a cut such as
            "1:webp", or `Cache(…)` to choose where and how much. Replaces a policy.
        ranks: Which of several training processes this is, `Ranks(…)`; by default as torch.distributed or the launcher
            says when an epoch begins.
    """

    def __init__(
        self,
        data: Address | RemoteDataset | Any,
        pipeline: Any = None,
        *positional: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | str | Workers | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        policy: Any = None,
        order: str | Relaxed | Replay | None = None,
        on_error: str | OnError | None = None,
        output: str | Output | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        credentials: Credentials | None = None,
        faults: Faults | None = None,
        cache: bool | str | Cut | Cache = False,
        ranks: Ranks | None = None,
    ) -> None:
        told = TorchArguments(
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor,
            persistent_workers,
            pin_memory_device,
            in_order,
        )
        own = Own(seed, policy, order, on_error, output, target_transform, credentials, faults, cache, ranks)
        self._rebuilt_from = (data, pipeline, positional, told, own)
        inner, indices = unwrapped(data)
        pipeline, positional = divided(inner, pipeline, positional)
        told = told.with_positional(positional)
        told.check()
        # A collate_fn receives finished samples, and its batches go to the device unchanged.
        opened_as = own if told.collate_fn is None else own.on_host()
        self.dataset = opened_as.open(inner, pipeline, told.generator)
        self._make(told, own, indices)

    # long: it passes on all of the user's arguments, in one place.
    def _make(self, told: TorchArguments, own: Own, indices: Order | None) -> None:
        """Make everything that an epoch needs, now that the data set is open."""
        dataset, planning = self.dataset, own.planning
        samples = dataset.samples
        order = order_of(own.order, told.in_order)
        relaxed = relaxed_order(order)
        workers = workers_of(told.num_workers, dataset.transport.is_remote)
        is_auto = workers.number == "auto"
        kind = workers_kind(workers, told, self._own_code(told))
        if dataset.faults.hedge and workers.number == 0:
            raise ConfigError("hedge: second requests need fetching threads; use num_workers of at least 1")
        requests = workers.max_requests or MachineConfig.max_requests * samples.sources.known_nodes
        self._told = told
        self.num_workers: int = cores_here() if isinstance(workers.number, str) else workers.number
        self.batch_size = told.batch_size if told.batch_sampler is None else None
        self.drop_last = told.drop_last
        self.pin_memory = can_pin(told.pin_memory, told.pin_memory_device, dataset.output)
        self._ranks = own.ranks or Ranks()
        self._sampling = sampling_of(told, dataset, indices, self._ranks.uneven)
        if told.batch_sampler is not None and (relaxed is not None or isinstance(order, Replay)):
            raise ConfigError("order: a batch sampler chooses the samples of a batch; leave out order or batch_sampler")
        size = batch_size_of(told)
        self._batching = Batching(
            self._sampling,
            size,
            told.drop_last,
            collate_of(told, dataset.output),
            self.pin_memory,
            told.timeout or math.inf,
            device_of(own.device, dataset, told),
        )
        self._place = Place()
        self._running = Running()  # engines of the latest pass
        self._latest = Latest()
        self._is_closed = False
        self._spent: tuple[Spent, Plan | None] | None = None  # cost of the latest pass that ended, and its plan
        self._warned = False
        self.stats = Stats()
        result_bytes = dataset.finishing.result_bytes
        config = MachineConfig(
            buffer_bytes=bound_ahead(workers.buffer_bytes, told.prefetch_factor, self.num_workers, size, result_bytes),
            deadline_s=dataset.faults.deadline_s,
            max_requests=requests,
            request_samples=min(MachineConfig.request_samples, dataset.opened.max_samples),
            max_delay=None if relaxed is None else relaxed.max_delay,
            nodes=samples.sources.nodes,
            has_fallback=samples.sources.has_fallback,
            hedge=dataset.faults.hedge,
        )
        policy = planning.policy or dataset.measures
        settings = PlanSettings(
            policy=policy if isinstance(policy, str) and policy in MEASURED else "optimal",
            options=Options(allow_lossy=planning.allow_lossy),
            share=planning.share,
            profile=planning.profile_path,
            keep=planning.profile is not False,
        )
        cores = float(min(max(self.num_workers, 1), cores_here()))
        should_plan = self._should_plan(policy)
        self._planner = Planner(samples, settings, cores, self.stats, self.num_workers == 0) if should_plan else None
        is_remote, is_alone = dataset.transport.is_remote, self.num_workers == 0
        self._watch = None if should_plan else Watch(is_remote, cores, self.stats, is_alone)
        context, init = told.multiprocessing_context, told.worker_init_fn
        self._passes = Passes(
            samples,
            dataset.finishing,
            self.bad_samples,
            self._batching,
            config,
            Staff(self.num_workers, kind, context, told.persistent_workers, init, dataset),
            self.stats,
            self._planner,
            tuner_for(kind, workers.max_requests, requests, config.buffer_bytes) if is_auto else None,
            order.opened(dataset.opened.fingerprint, size) if isinstance(order, Replay) else None,
            self._watch,
        )
        self._setup = Setup(
            workers=self.num_workers,
            requests=requests,
            kind=kind,
            cores=cores_here(),
            is_remote=is_remote,
            bad=0,
            on_error=self.bad_samples.policy,
            cuts_by=self._cuts_by(),
            is_auto=is_auto,
            finds_requests=is_auto and workers.max_requests is None,
            is_persistent=told.persistent_workers,
            has_collate=told.collate_fn is not None,
            store=dataset.opened.store,
        )
        self._is_made = True
        with suppress(RankError):  # a launcher may set the rank later
            len(self)  # raises if samples cannot be shared evenly but must be

    def _own_code(self, told: TorchArguments) -> str:
        """Return which user code the loader runs, in words; "" if none."""
        finishing = self.dataset.finishing
        first = finishing.pipeline.first_call
        names = [title(finishing.pipeline.ops[first])] if first < len(finishing.pipeline) else []
        names += ["target_transform"] if finishing.target_transform is not None else []
        names += ["collate_fn"] if told.collate_fn is not None else []
        names += ["worker_init_fn"] if told.worker_init_fn is not None else []
        return " and ".join(names)

    def _should_plan(self, policy: Any) -> bool:
        """Return whether this loader measures and plans for itself."""
        samples = self.dataset.samples
        if self.dataset.is_cached and policy is not None:
            raise ConfigError(f"policy {policy!r}: a cache decides which ops run before it; leave out the policy")
        measures = policy is None or (isinstance(policy, str) and policy in MEASURED)
        if self.dataset.is_cached or not measures:
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
        """The plan of this epoch: `print(loader.plan.explain())` shows what was decided and why.

        None if this loader does not plan, and until the first epoch after the measured one begins.
        """
        return None if self._planner is None else self._planner.plan

    @property
    def log(self) -> OrderLog | None:
        """In relaxed order, which samples came in which batches; `Replay(loader.log)` repeats them."""
        return self._passes.log

    @property
    def setting(self) -> Setting:
        """Current number of workers, requests and bytes read ahead; "auto" workers adjust them to the bottleneck."""
        return self._passes.setting

    @property
    def profile(self) -> Profile | None:
        """The measured cost of samples; `print(loader.profile.explain())` describes it in words."""
        return None if self._planner is None else self._planner.profile

    @property
    def resources(self) -> Resources | None:
        """What the loader has measured about the link, the storage node, the trainer and the consumer."""
        return None if self._planner is None else self._planner.resources()

    @property
    def verdict(self) -> Verdict | None:
        """What holds this training back, as measured by the loader; None until an epoch has been measured.

        For a loader that plans, this describes an epoch without offloading; otherwise, what has run so far.
        """
        if self._planner is not None:
            return self._planner.verdict()
        return None if self._watch is None else self._watch.verdict()

    @property
    def revisions(self) -> int:
        """How often the plan was replaced in the middle of an epoch."""
        return 0 if self._planner is None else self._planner.revisions

    @property
    def epoch(self) -> int:
        """The epoch of the next pass."""
        return self._place.next_epoch

    @property
    def ranks(self) -> Rank:
        """Which of several training processes this is, if this loader divides the samples among them."""
        return self._ranks.found() if self._sampling.is_shared else Rank()

    @property
    def usual_batch(self) -> int:
        """Number of samples in a batch; an estimate if a batch sampler decides."""
        return self._batching.size

    @property
    def shuffle(self) -> bool:
        """Whether samples come in random order."""
        return bool(self._told.shuffle)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and self.__dict__.get("_is_made"):
            raise ConfigError(f"{name} of a loader cannot be changed after creation; create another one")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of torch's DataLoader with this name: its arguments, which training frameworks read."""
        if name in _TORCHS and "_told" in self.__dict__:
            return getattr(self._told, name)
        raise AttributeError(f"DataLoader has no attribute {name!r}")

    @property
    def bad_samples(self) -> BadSamples:
        """The samples that could not be loaded so far, with reasons; `bad_samples.save(path)` writes them to a file."""
        return self.dataset.bad_samples

    def set_epoch(self, epoch: int) -> None:
        """Continue with this epoch; otherwise every pass is the next one, starting from 0.

        An epoch for which a state was loaded continues where it stopped; any other starts at its beginning.
        """
        at_least("epoch", epoch, 0)
        self._place.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the training loop: a small dict of JSON values.

        It counts the batches that were delivered, not those being made; so it may be taken at any time. It is the same
        on all ranks, except in the middle of an epoch in relaxed order: then each rank has its own, with the few
        samples that were delivered out of turn, at most `max_delay` × batch_size late and as many early ones.
        """
        return self._state(*self._place.at).to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state, even with a different number of workers or ranks, or a different batch size.

        Raises:
            ArtifactError: The state belongs to a different data set, pipeline, seed or shuffling; or it was taken in
                the middle of an epoch in relaxed order, by another rank or with a different number of ranks.
        """
        saved = State.from_dict(state)
        saved.require(self._state(saved.epoch, saved.cursor))
        self._sampling.load(saved.sampler)
        turns = None if saved.turns is None else Turns.from_dict(saved.turns, saved.cursor, self.ranks)
        self._place.load(saved.epoch, saved.cursor, self._left(saved.cursor) == 0, turns)

    def _state(self, epoch: int, cursor: int, turns: Turns | None = None) -> State:
        return State(
            seed=self.dataset.seed,
            epoch=epoch,
            cursor=cursor,
            samples=self._sampling.total(),
            shuffle=self._sampling.is_shuffled,
            dataset=self.dataset.opened.fingerprint + self._sampling.subset,
            pipeline=self.dataset.whole.fingerprint,
            plan=self.revisions,
            turns=None if turns is None else turns.to_dict(),
            sampler=self._sampling.state(epoch, self._place.is_ahead),
        )

    def _left(self, cursor: int) -> int:
        """Return how many batches are left after `cursor` samples."""
        return self._batching.count(cursor, self.ranks)

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch, the same on all ranks."""
        return self._left(0)

    def __iter__(self) -> Iterator[Any]:
        self._running = Running()
        return self._begin(self._running)

    def _begin(self, running: Running) -> Generator[Any]:
        """Return the next pass; its engine, if any, is added to `running` when it starts."""
        if self._is_closed:
            raise ConfigError("this loader is closed; create another one")
        if self._latest.was_dropped:  # trainers test whether a loader is iterable: that is not an epoch
            self._place.take_back()
        epoch, cursor, turns = self._place.begin()
        self.dataset.set_epoch(epoch)
        self._latest = latest = Latest()
        batches = self._pass(Start(epoch, cursor, self.ranks, turns), running, latest)
        latest.of(batches)
        return batches

    def shared(self) -> SharedBatches:
        """Return the batches of the next epoch for several threads to draw from; each goes to exactly one of them.

        Made for one thread per accelerator: ``with loader.shared() as batches:`` start threads that run
        ``for batch in batches:``. State and counts cover all of them together.
        """
        running = Running()
        return SharedBatches(self._begin(running), running.stop)

    def progress(self, description: str | None = None, console: Any = None) -> Iterator[Any]:
        """Iterate over the next epoch and show a bar with the progress, the speed and the time spent waiting.

        Args:
            description: Text next to the bar; by default the epoch.
            console: A `rich.console.Console` to show it on; by default the error stream.
        """
        batches = iter(self)
        place, start_s = self._place, time.monotonic()
        before, waited_s = self.stats.samples, self.stats.waited_s

        def note() -> str:
            wall_s = max(time.monotonic() - start_s, 1e-9)
            waited = (self.stats.waited_s - waited_s) / wall_s
            return f"{(self.stats.samples - before) / wall_s:,.0f} samples/s, waited {min(waited, 1.0):.0%} of the time"

        done = max(len(self) - self._left(place.cursor), 0)
        shown: Iterator[Any] = with_bar(batches, len(self), done, description or f"epoch {place.epoch}", note, console)
        return shown

    def close(self) -> None:
        """Close everything that belongs to this loader: a running epoch, worker processes, connections, open files."""
        self._is_closed = True
        self._running.stop()
        self._passes.close()
        for source in self.dataset.sources:
            source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        # As in torch, a copy in another process keeps its arguments and its position.
        return _rebuilt, (*self._rebuilt_from, self.state_dict())

    def explain(self) -> str:
        """Return an explanation of where the time of the last epoch went, and what would help."""
        if self._spent is None:
            return "No epoch has run yet: iterate over the loader first."
        spent, plan = self._spent
        setup = replace(
            self._setup,
            workers=self.setting.workers if self.num_workers else 0,
            requests=self.setting.requests,
            bad=len(self.bad_samples),
        )
        return explain_epoch(spent, setup, self.verdict, plan)

    def _pass(self, start: Start, running: Running, latest: Latest) -> Generator[Any]:
        latest.is_started = True
        epoch, cursor, ranks, turns = start.epoch, start.cursor, start.ranks, start.turns
        before, start_s = self.stats.to_dict(), time.monotonic()
        if turns is None:
            turns = self._passes.turns(epoch, cursor, ranks)
        batches = self._passes.batches(Start(epoch, cursor, ranks, turns), running)
        handed, is_whole = 0, False
        try:
            for batch, positions in batches:
                cursor = min(cursor + len(positions) * ranks.size, self._sampling.total())
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

    def _check_empty(self, ranks: Rank) -> None:
        if ranks.size > 1:
            raise BudgetError(
                f"all samples of a batch are bad; leaving it out would make rank {ranks.rank} take fewer steps than "
                "the others, which would wait forever. Use on_error='substitute'."
            )

    def _warn_of_smaller_cuts(self, samples: int, smaller: int) -> None:
        chooses = self.dataset.samples.opened.has_bands  # the store reads whole objects where that is better
        if not chooses and self._planner is None and smaller > _MANY * samples and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.dataset.url} sent {smaller:,} of {samples:,} samples as raw files instead of making the "
                "requested cut (overload, or files that cannot be cut that way); the tensors are the same. "
                "sophon_smaller_cuts_total on its --metrics-port counts the reasons.",
                OffloadWarning,
                stacklevel=3,
            )


def _rebuilt(data: Any, pipeline: Any, positional: tuple[Any, ...], told: Any, own: Any, state: Any) -> DataLoader:
    """Rebuild a pickled loader."""
    names = [field.name for field in fields(told)], [field.name for field in fields(own)]
    said = {name: getattr(one, name) for one, some in zip((told, own), names, strict=True) for name in some}
    loader = DataLoader(data, pipeline, *positional, **said)
    loader.load_state_dict(state)
    return loader
