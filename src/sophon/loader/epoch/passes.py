"""Makes the batches of successive passes.

Concurrency: a pass is a generator that runs in its consumer; all threads belong to its engine.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sophon.loader.account.bad import BadSamples
from sophon.loader.account.stats import Stats
from sophon.loader.epoch import leaving
from sophon.loader.epoch.batch import OwnMemory
from sophon.loader.epoch.collate import Collate, pinning
from sophon.loader.epoch.costs import Costs
from sophon.loader.epoch.device import Device
from sophon.loader.epoch.engine import Engine, Hands, Stretch
from sophon.loader.epoch.finishers import Finishers, Here
from sophon.loader.epoch.finishing import Finishing
from sophon.loader.epoch.mending import Mending
from sophon.loader.epoch.shared import Running
from sophon.loader.epoch.workers import Workers, context_for
from sophon.loader.machine.machine import MachineConfig
from sophon.loader.machine.tuner import Setting, Tuner
from sophon.loader.order.log import OrderLog
from sophon.loader.order.ranks import Rank
from sophon.loader.order.sampling import Sampling
from sophon.loader.order.turns import Positions, Turns
from sophon.loader.planning.planner import Planner
from sophon.loader.sources.samples import Samples, Watcher


@dataclass(frozen=True)
class Batching:
    """How samples become batches.

    Args:
        sampling: Samples of an epoch and their order.
        size: Number of samples in a batch; an estimate if a batch sampler decides.
        drop_last: Whether to leave out an incomplete last batch.
        collate: The user's own function, if any.
        pin: Copy batches into pinned memory.
        timeout_s: How long the next batch may take; infinite for no limit.
        device: Device for batches, if they do not stay on the host.
    """

    sampling: Sampling
    size: int
    drop_last: bool
    collate: Collate | None
    pin: bool
    timeout_s: float = math.inf
    device: Device | None = None

    def count(self, cursor: int, rank: Rank) -> int:
        """Return how many batches one rank makes from the rest of an epoch."""
        return self.sampling.batches(cursor, rank, self.size, self.drop_last)


@dataclass(frozen=True)
class Staff:
    """The threads or processes that finish samples.

    Args:
        workers: Number of threads or processes; 0 for the thread that iterates.
        kind: "threads" or "processes".
        method: How processes are started; see `workers.context_for`.
        is_persistent: Whether processes are kept between epochs.
        init: The user's own function, called in each process when it starts.
        dataset: The data set reported to worker processes.
    """

    workers: int
    kind: str = "threads"
    method: Any = None
    is_persistent: bool = False
    init: Callable[[int], Any] | None = None
    dataset: Any = None

    @property
    def has_processes(self) -> bool:
        """Whether there are worker processes."""
        return self.kind == "processes" and self.workers > 0


@dataclass(frozen=True)
class Start:
    """The starting point of a pass.

    Args:
        epoch: Number of the epoch.
        cursor: How many of the epoch's samples are done, by all ranks together.
        ranks: Which of several training processes this is.
        turns: Which samples of this rank were delivered out of turn; None in strict order.
    """

    epoch: int
    cursor: int
    ranks: Rank
    turns: Turns | None


class Passes:
    """Makes the batches of successive passes.

    Args:
        samples: Source of the samples.
        finishing: How samples are finished.
        bad: The policy for bad samples.
        batching: How samples become batches.
        config: Bounds and times.
        staff: What finishes the samples.
        stats: Counts to add to.
        planner: Chooses the cuts; None if they are fixed.
        tuner: Decides the number of workers; None if it is fixed.
        replay: A recorded order to keep to, if any.
        watcher: Observes requests if there is no planner.
    """

    def __init__(
        self,
        samples: Samples,
        finishing: Finishing,
        bad: BadSamples,
        batching: Batching,
        config: MachineConfig,
        staff: Staff,
        stats: Stats,
        planner: Planner | None = None,
        tuner: Tuner | None = None,
        replay: OrderLog | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self._samples = samples
        self._finishing = finishing
        self._bad = bad
        self._batching = batching
        self._config = config
        self._staff = staff
        self._stats = stats
        self._planner = planner
        self.tuner = tuner
        self._replay = replay
        self._watcher = watcher
        self._costs = Costs(len(samples))
        self._memory = OwnMemory(config.buffer_bytes)
        self._kept: Workers | None = None  # processes that are kept between epochs
        is_relaxed = config.max_delay is not None
        self.log = OrderLog(samples.opened.fingerprint, batching.size) if is_relaxed else None
        if staff.has_processes:
            context_for(staff.method)  # impossible combinations are reported when the loader is created

    @property
    def setting(self) -> Setting:
        """The setting found by the tuner, or given by the user."""
        if self.tuner is not None:
            return self.tuner.setting
        return Setting(self._staff.workers, self._config.max_requests, self._config.buffer_bytes)

    def turns(self, epoch: int, cursor: int, ranks: Rank) -> Turns | None:
        """Return the turns with which an epoch starts, recorded or empty; None in strict order."""
        if self._replay is not None:
            return self._replay.turns(epoch, cursor, ranks)
        return None if self._config.max_delay is None else Turns(ranks, cursor)

    def batches(self, start: Start, running: Running) -> Generator[tuple[Any, Positions]]:
        """Yield each remaining batch of an epoch with the positions of its samples.

        Args:
            start: Starting point.
            running: Receives the engine, so that other threads can stop it.
        """
        # Processes are forked first, before the pass has any threads or connections.
        finishers = self._finishers()
        engine: Engine | None = None
        try:
            left, row, stretch = self._stretch(start)
            if self._planner is not None:
                self._planner.begin(start.epoch, start.ranks.size, row, left)
                if (predicted := self._planner.finish_s()) is not None:
                    self._costs.expect(predicted)
            careful = 0 if self._planner is None else self._planner.careful
            engine = Engine(self._hands(finishers), stretch, replace(self._config, careful=careful))
            running.add(engine)
            for number, batch in enumerate(engine.batches()):
                yield batch, left[engine.positions_in(number)]
                del batch
        finally:
            self._end(finishers, engine)
            if engine is not None:
                if self.log is not None and start.turns is not None:
                    begun, places = start.turns.begun, start.turns.places
                    self.log.record(start.epoch, row, left[engine.positions], begun=begun, start=places)
                if self._planner is not None:
                    self._planner.end()

    def _hands(self, finishers: Finishers) -> Hands:
        mending = Mending(self._samples, self._bad, self._stats)
        return Hands(
            self._samples,
            self._finishing,
            finishers,
            mending,
            self._stats,
            self._costs,
            self._planner,
            self.tuner,
            self._watcher,
        )

    def _stretch(self, start: Start) -> tuple[Positions, Positions, Stretch]:
        """Return the positions that are left, this rank's row of samples, and the work for an engine."""
        epoch, turns, batching = start.epoch, start.turns, self._batching
        begun = start.cursor if turns is None else turns.begun
        told = batching.sampling.row(epoch, begun, start.ranks)
        row = told.samples
        left = self._left(epoch, row, turns)
        if batching.drop_last:
            left = left[: len(left) // batching.size * batching.size]
        latest = None
        if turns is not None and self._config.max_delay is not None:
            latest = turns.latest(left, batching.size, self._config.max_delay)
        stretch = Stretch(
            order=row[left],
            epoch=epoch,
            batch_size=batching.size,
            workers=self._staff.workers,
            sizes=told.sizes,
            has_collate=batching.collate is not None,
            latest=latest,
            positions=told.positions[left],
            keys=None if told.keys is None else told.keys[left],
            timeout_s=batching.timeout_s,
            pin=pinning() if batching.pin and batching.device is None else None,
            device=batching.device,
        )
        return left, row, stretch

    def _left(self, epoch: int, row: Positions, turns: Turns | None) -> Positions:
        """Return the positions of this rank's samples that are still to come."""
        if turns is None:
            return np.arange(len(row))
        return turns.left(len(row)) if self._replay is None else self._replay.left(epoch, row, turns)

    def _finishers(self) -> Finishers:
        """Return what finishes the samples of a pass."""
        staff, collate = self._staff, self._batching.collate
        if not staff.has_processes:
            return Here(self._finishing, collate, self._memory)
        if self._kept is not None and not self._kept.is_busy:
            self._kept.is_busy = True
            return self._kept
        count = staff.workers if self.tuner is None else self.tuner.most.workers
        workers = Workers(
            count,
            staff.method,
            self._finishing,
            collate,
            self._config.buffer_bytes,
            staff.init,
            staff.dataset,
        )
        if staff.is_persistent and self._kept is None:  # a second pass at the same time gets its own processes
            self._kept, workers.is_busy, workers.is_kept = workers, True, True
            # They end with the loader, or at the latest with the interpreter.
            self._ending = weakref.finalize(self, _close, workers)
        return workers

    def _end(self, finishers: Finishers, engine: Engine | None) -> None:
        """Stop the engine and the processes of a pass."""
        if engine is not None:
            engine.close()
        if self._kept is None or finishers is not self._kept:
            _close(finishers)
            return
        self._kept.is_busy = False
        if self._kept.is_broken:
            self._ending.detach()
            self._kept.close()
            self._kept = None

    def close(self) -> None:
        """End the processes that are kept between epochs."""
        if self._kept is not None and not self._kept.is_busy:
            self._ending.detach()
            self._kept.close()
            self._kept = None


def _close(finishers: Finishers) -> None:
    finishers.close(wait=not leaving.by_collector())
