"""How the batches of a pass are made: by threads of this process, or by torch's worker processes.

Concurrency: a pass is a generator of its consumer; what runs beside it is the engine's, or torch's.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sophon.errors import ConfigError
from sophon.loader.bad import BadSample
from sophon.loader.collate import pinned
from sophon.loader.costs import Costs
from sophon.loader.dataset import RemoteDataset
from sophon.loader.engine import Engine, Job
from sophon.loader.machine import MachineConfig
from sophon.loader.order import epoch_order
from sophon.loader.order_log import OrderLog
from sophon.loader.planner import Planner
from sophon.loader.ranks import Ranks, each, share
from sophon.loader.sampler import EpochSampler
from sophon.loader.shared import Running
from sophon.loader.stats import Stats
from sophon.loader.torch_import import need_torch
from sophon.loader.tuner import Setting, Tuner
from sophon.loader.turns import Positions, Turns
from sophon.loader.worker import WorkerSide, ended_with, opened


@dataclass(frozen=True)
class Batching:
    """How samples become batches.

    Args:
        size: Samples in a batch.
        shuffle: In random order, another one each epoch.
        drop_last: Leave out a last batch that is smaller.
        uneven: What to do if samples cannot be shared evenly.
        collate: The user's own function, if any.
        pin: Copy batches into pinned memory.
    """

    size: int
    shuffle: bool
    drop_last: bool
    uneven: str
    collate: Callable[[list[Any]], Any] | None
    pin: bool

    def count(self, samples: int, ranks: Ranks) -> int:
        """Return how many batches each rank makes of some samples."""
        mine = each(max(samples, 0), ranks, self.uneven)
        return mine // self.size if self.drop_last else -(-mine // self.size)


@dataclass(frozen=True)
class Start:
    """Where a pass begins.

    Args:
        epoch: Which epoch.
        cursor: How many samples of it are done, by all ranks together.
        ranks: Which of several training processes this is.
        turns: Which samples of this rank left out of turn; None in strict order.
    """

    epoch: int
    cursor: int
    ranks: Ranks
    turns: Turns | None


class Passes(ABC):
    """Makes the batches of one pass after the other."""

    log: OrderLog | None = None

    @property
    @abstractmethod
    def setting(self) -> Setting:
        """How many workers, requests and bytes ahead there are."""

    def turns(self, epoch: int, cursor: int, ranks: Ranks) -> Turns | None:  # noqa: ARG002 - others need them
        """Return the turns that an epoch begins with, unless it has strict order."""
        return None

    @abstractmethod
    def batches(self, start: Start, running: Running) -> Generator[tuple[Any, Positions]]:
        """Yield each batch with the positions of its samples; an engine is added to those that run."""


class ThreadPasses(Passes):
    """Batches made by an engine in this process.

    Args:
        dataset: Where samples come from and what is done to them.
        batching: How they become batches.
        config: Bounds and times.
        workers: Threads that finish samples; 0 for none.
        stats: Where to count.
        planner: Who chooses the cuts, if anybody does.
        tuner: Who decides how many threads there are, if anybody does.
        replay: A recorded order to keep to, if any.
    """

    def __init__(
        self,
        dataset: RemoteDataset,
        batching: Batching,
        config: MachineConfig,
        workers: int,
        stats: Stats,
        planner: Planner | None = None,
        tuner: Tuner | None = None,
        replay: OrderLog | None = None,
    ) -> None:
        self._dataset = dataset
        self._batching = batching
        self._config = config
        self._workers = workers
        self._stats = stats
        self._planner = planner
        self.tuner = tuner
        self._replay = replay
        self._costs = Costs(len(dataset))
        is_relaxed = config.max_delay is not None
        self.log = OrderLog(dataset.opened.fingerprint, batching.size) if is_relaxed else None

    @property
    def setting(self) -> Setting:
        """What the tuner has found, or what was told."""
        if self.tuner is not None:
            return self.tuner.setting
        return Setting(self._workers, self._config.max_requests, self._config.buffer_bytes)

    def turns(self, epoch: int, cursor: int, ranks: Ranks) -> Turns | None:
        """Return the turns of the recorded run, or those of a relaxed order in which nothing has happened yet."""
        if self._replay is not None:
            return self._replay.turns(epoch, cursor, ranks)
        return None if self._config.max_delay is None else Turns(ranks, cursor)

    def batches(self, start: Start, running: Running) -> Generator[tuple[Any, Positions]]:
        """Run an engine for what is left of the epoch."""
        epoch, turns, batching = start.epoch, start.turns, self._batching
        whole = epoch_order(len(self._dataset), self._dataset.seed, epoch, shuffle=batching.shuffle)
        row = share(whole, start.cursor if turns is None else turns.begun, start.ranks, batching.uneven)
        left = self._left(epoch, row, turns)
        if batching.drop_last:
            left = left[: len(left) // batching.size * batching.size]
        latest = None
        if turns is not None and self._config.max_delay is not None:
            latest = turns.latest(left, batching.size, self._config.max_delay)
        if self._planner is not None:
            self._planner.begin(epoch, start.ranks.size)
            if (predicted := self._planner.finish_s()) is not None:
                self._costs.expect(predicted)
        job = Job(row[left], epoch, batching.size, self._workers, batching.collate, latest)
        engine = Engine(self._dataset, job, self._config, self._stats, self._costs, self._planner, self.tuner)
        running.add(engine)
        try:
            for number, batch in enumerate(engine.batches()):
                yield pinned(batch) if batching.pin else batch, left[engine.positions_in(number)]
        finally:
            engine.close()
            if self.log is not None and turns is not None:
                self.log.record(epoch, row, left[engine.positions], begun=turns.begun, start=turns.places)
            if self._planner is not None:
                self._planner.end()

    def _left(self, epoch: int, row: Positions, turns: Turns | None) -> Positions:
        """Return the positions of this rank's samples that are still to come."""
        if turns is None:
            return np.arange(len(row))
        return turns.left(len(row)) if self._replay is None else self._replay.left(epoch, row, turns)


class ProcessPasses(Passes):
    """Batches made by the worker processes of torch's own DataLoader.

    Args:
        dataset: Where samples come from and what is done to them.
        batching: How they become batches.
        setting: How many processes.
        stats: Where to count.
        options: Further arguments of torch's loader.
    """

    def __init__(
        self, dataset: RemoteDataset, batching: Batching, setting: Setting, stats: Stats, options: dict[str, Any]
    ) -> None:
        data_of = need_torch('workers="processes"').utils.data
        self._dataset = dataset
        self._size = batching.size
        self._setting = setting
        self._stats = stats
        self._sampler = EpochSampler(dataset, shuffle=batching.shuffle, seed=dataset.seed, uneven=batching.uneven)
        self._latest: object = None  # of the passes, if they have their workers in common
        side = WorkerSide(dataset, batching.collate)
        self._loader = data_of.DataLoader(
            side,
            batch_sampler=data_of.BatchSampler(self._sampler, batching.size, batching.drop_last),
            num_workers=setting.workers,
            collate_fn=side.collate,
            pin_memory=batching.pin,
            **options,
        )

    @property
    def setting(self) -> Setting:
        """What was told."""
        return self._setting

    def batches(self, start: Start, running: Running) -> Generator[tuple[Any, Positions]]:  # noqa: ARG002 - no engine
        """Have torch's loader run for what is left of the epoch."""
        self._sampler.ranks = start.ranks
        self._sampler.place.load(start.epoch, start.cursor, is_over=False, turns=start.turns)
        since_s = time.monotonic()
        ending = contextlib.nullcontext if self._loader.persistent_workers else ended_with
        with ending(iter(self._loader)) as all_sent:
            mine = self._alone(all_sent) if self._loader.persistent_workers else all_sent
            for number, sent in enumerate(mine):
                batch, report = opened(sent)
                self._stats.merge(report["stats"])
                if self._stats.fallback:
                    self._dataset.sources.warn_of_fallback(stacklevel=4)
                for row in report["bad"]:
                    self._dataset.bad_samples.note(BadSample(**row))
                now_s = time.monotonic()
                self._stats.add(waited_s=now_s - since_s)
                yield batch, self._sampler.left(number * self._size, (number + 1) * self._size)
                since_s = time.monotonic()
                self._stats.add(consumer_s=since_s - now_s)

    def _alone(self, all_sent: Iterator[Any]) -> Iterator[Any]:
        """Yield what persistent workers send until another pass begins, whose batches would come here instead."""
        mine = self._latest = object()
        while True:
            if self._latest is not mine:
                raise ConfigError(
                    "persistent_workers serve one iterator at a time, and another one was begun; end the first before "
                    "the second, or use a loader of its own for each"
                )
            try:
                sent = next(all_sent)
            except StopIteration:
                return
            yield sent
