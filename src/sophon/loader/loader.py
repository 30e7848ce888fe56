"""DataLoader: torch's arguments and meanings, with samples from a storage node or a path."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import BatchSampler
from torch.utils.data import DataLoader as TorchDataLoader

from sophon.codec.cut import RAW, Cut
from sophon.errors import ConfigError
from sophon.loader.costs import Costs
from sophon.loader.cuts import OffloadWarning
from sophon.loader.dataset import RemoteDataset
from sophon.loader.engine import Engine
from sophon.loader.machine import MachineConfig
from sophon.loader.order import epoch_order
from sophon.loader.order_log import OrderLog, Relaxed, Replay
from sophon.loader.planner import Planner, PlanSettings
from sophon.loader.sampler import EpochSampler
from sophon.loader.stats import Stats
from sophon.loader.tuner import Setting, Tuner
from sophon.plan.plan import Plan
from sophon.plan.policies import Options
from sophon.plan.resources import Resources
from sophon.profile.explore import DEFAULT_SHARE
from sophon.profile.table import Profile
from sophon.profile.verdict import Verdict

_WORKERS = ("threads", "processes")
DEFAULT_BUFFER_BYTES = 1 << 30
DEFAULT_REQUESTS = 2
_MOST_REQUESTS = 32  # a storage node answers each with a stream and a few samples of lookahead of its own
_SHALLOW = 8  # of the buffer's bytes, an eighth is read ahead until that proves too little
MEASURED = ("optimal", "sophon", "fastflow")
_MANY = 0.1  # of an epoch's samples with a smaller cut than asked for are worth a warning


class DataLoader:
    """Iterates over the batches of a data set; every pass is the next epoch.

    The sequence of batches is a function of the data set, the pipeline, the batch size, the seed and the epoch:
    workers, threads or processes, cuts and failures on the way change nothing of it. Only with ``order="relaxed"`` it
    also depends on what is finished first; the tensors of a sample stay the same.

    Args:
        data: Address ``grpc://host:port/dataset``, a path, or a `RemoteDataset`.
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
        order: "strict" for batches that are the same in every run; "relaxed", or `Relaxed(max_delay)`, for batches of
            what is finished first, so that slow samples hold up no others (`loader.log` records the order);
            `Replay(log)` for the batches of a recorded run.
        max_requests: Requests under way at once; by default 2, or what the bottleneck asks for with "auto".
        workers: "threads", or "processes" where the pipeline has steps that hold Python's lock.
        multiprocessing_context: For processes: "fork", "spawn" or "forkserver".
        prefetch_factor: For processes: batches per worker that are made ahead, as in torch.
        persistent_workers: For processes: keep them between epochs, as in torch.
    """

    def __init__(
        self,
        data: str | Path | RemoteDataset,
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
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        deadline_s: float = 60.0,
        order: str | Relaxed | Replay = "strict",
        max_requests: int | None = None,
        workers: str = "threads",
        multiprocessing_context: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        _at_least("batch_size", batch_size, 1)
        if num_workers != "auto":
            _at_least("num_workers", num_workers, 0)
        if max_requests is not None:
            _at_least("max_requests", max_requests, 1)
        _at_least("buffer_bytes", buffer_bytes, 1)
        if workers not in _WORKERS:
            raise ConfigError(f"workers: expected threads or processes, got {workers!r}")
        if deadline_s <= 0:
            raise ConfigError(f"deadline_s: expected seconds above 0, got {deadline_s!r}")
        if isinstance(data, RemoteDataset):
            if pipeline is not None:
                raise ConfigError("a RemoteDataset has its own pipeline; give one of them")
            self.dataset = data
        else:
            if pipeline is None:
                raise ConfigError("pipeline: expected a Pipeline or a torchvision transform, got none")
            self.dataset = RemoteDataset(
                str(data),
                pipeline,
                seed=seed,
                policy=None if policy in MEASURED else policy,
                plan=plan,
                target_transform=target_transform,
                columns=columns,
                deadline_s=deadline_s,
            )
        self.batch_size = batch_size
        self.shuffle = shuffle
        self._tuner = _tuner(max_requests, buffer_bytes) if num_workers == "auto" else None
        self.num_workers: int = _most_workers() if isinstance(num_workers, str) else num_workers
        self.collate_fn = collate_fn
        self.drop_last = drop_last
        self.pin_memory = _can_pin(pin_memory)
        self.epoch = 0
        self._warned = False
        self.stats = Stats()
        relaxed = _relaxed(order)
        self._config = MachineConfig(
            buffer_bytes=buffer_bytes,
            deadline_s=deadline_s,
            max_requests=DEFAULT_REQUESTS if max_requests is None else max_requests,
            max_delay=None if relaxed is None else relaxed.max_delay,
        )
        self._costs = Costs(len(self.dataset))
        self._replay = None
        if isinstance(order, Replay):
            self._replay = order.opened(self.dataset.opened.fingerprint, batch_size)
        self.log = None if relaxed is None else OrderLog(self.dataset.opened.fingerprint, batch_size)
        self._planner = None
        settings = PlanSettings(
            policy=policy if isinstance(policy, str) and policy in MEASURED else "optimal",
            options=Options(allow_lossy=allow_lossy),
            share=profile_share,
            profile=None if profile is None or isinstance(profile, bool) else Path(profile),
            keep=profile is not False,
        )
        if self._should_plan(policy, plan, workers):
            self._planner = Planner(self.dataset, settings, _cores(self.num_workers), self.stats)
        self._torch_loader = None
        if workers == "processes" and self.num_workers > 0:
            if order != "strict" or num_workers == "auto":
                raise ConfigError("worker processes keep strict order and a fixed number; use workers='threads'")
            self._sampler = EpochSampler(self.dataset, shuffle=shuffle, seed=self.dataset.seed)
            self._torch_loader = TorchDataLoader(
                self.dataset,
                batch_sampler=BatchSampler(self._sampler, batch_size, drop_last),
                num_workers=self.num_workers,
                collate_fn=collate_fn,
                multiprocessing_context=multiprocessing_context,
                prefetch_factor=prefetch_factor,
                persistent_workers=persistent_workers,
                pin_memory=self.pin_memory,
            )

    def _should_plan(self, policy: Any, plan: Any, workers: str) -> bool:
        """Return whether this loader measures and plans for itself."""
        if plan is not None or (policy is not None and policy not in MEASURED):
            return False
        if self.dataset.assignment.cuts != (RAW,) or not self.dataset.transport.is_remote:
            return False
        if workers == "processes" and self.num_workers > 0:
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
    def setting(self) -> Setting:
        """How many workers, requests and bytes ahead there are; with num_workers="auto" it follows the bottleneck."""
        if self._tuner is not None:
            return self._tuner.setting
        return Setting(self.num_workers, self._config.max_requests, self._config.buffer_bytes)

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

    def set_epoch(self, epoch: int) -> None:
        """Go on with this epoch; otherwise every pass is the next one, from 0."""
        _at_least("epoch", epoch, 0)
        self.epoch = epoch

    def __len__(self) -> int:
        count = len(self.dataset)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        self.dataset.set_epoch(epoch)
        if self._torch_loader is not None:
            self._sampler.set_epoch(epoch)
            return iter(self._torch_loader)
        return self._run(epoch)

    def _run(self, epoch: int) -> Iterator[Any]:
        order = epoch_order(len(self.dataset), self.dataset.seed, epoch, shuffle=self.shuffle)
        if self.drop_last:
            order = order[: len(self) * self.batch_size]
        strict, order = order, order if self._replay is None else self._replay.replay(epoch, order)
        if self._planner is not None:
            self._planner.begin(epoch)
            if (predicted := self._planner.finish_s()) is not None:
                self._costs.expect(predicted)
        before = (self.stats.samples, self.stats.smaller_cuts)  # the engine's threads count from its first moment
        engine = Engine(
            self.dataset,
            order,
            epoch,
            self.batch_size,
            self._config,
            self.num_workers,
            self.collate_fn,
            self.stats,
            self._planner,
            self._costs,
            self._tuner,
        )
        try:
            for batch in engine.batches():
                yield _pinned(batch) if self.pin_memory else batch
        finally:
            engine.close()
            if self.log is not None:
                self.log.record(epoch, strict, engine.positions)
            if self._planner is not None:
                self._planner.end()
        self._warn_of_smaller_cuts(self.stats.samples - before[0], self.stats.smaller_cuts - before[1])

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


def _at_least(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}: expected an integer of at least {least}, got {value!r}")


def _cores(workers: int) -> float:
    """Return how many cores finish samples: one per worker, but no more than this process may use."""
    return float(min(max(workers, 1), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else workers))


def _most_workers() -> int:
    """Return how many threads to begin with: one per core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _tuner(max_requests: int | None, buffer_bytes: int) -> Tuner:
    cores = _most_workers()
    start = Setting(cores, max_requests or DEFAULT_REQUESTS, max(buffer_bytes // _SHALLOW, 1))
    # Threads that wait rather than compute may be more than there are cores.
    return Tuner(start, Setting(4 * cores, max_requests or _MOST_REQUESTS, buffer_bytes), cores)


def _relaxed(order: Any) -> Relaxed | None:
    if isinstance(order, Relaxed):
        return order
    if order == "relaxed":
        return Relaxed()
    if order != "strict" and not isinstance(order, Replay):
        raise ConfigError(f"order: expected 'strict', 'relaxed', Relaxed(max_delay) or Replay(log), got {order!r}")
    return None


def _can_pin(wanted: bool) -> bool:
    if wanted and not torch.accelerator.is_available():
        warnings.warn("pin_memory is set but there is no accelerator; batches are not pinned", stacklevel=3)
        return False
    return wanted


def _pinned(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.pin_memory()
    if isinstance(batch, list | tuple):
        return type(batch)(_pinned(part) for part in batch)
    return batch
