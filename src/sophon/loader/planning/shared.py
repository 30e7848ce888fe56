"""One plan and one set of counts for all processes that get samples from one `RemoteDataset`.

Under torch's own DataLoader, samples are fetched and finished by its worker processes, which know nothing of each
other. Their measurements and counts go through a ledger to the process that created the data set. That process plans
when an epoch begins, and puts the cuts in shared memory for the workers.

Concurrency: `begin` and `stats` are for the process that created the data set; any process may call `flush`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon.loader.account.stats import Stats
from sophon.loader.order.ranks import find_rank
from sophon.loader.planning.ledger import Ledger, Reporter, replay
from sophon.loader.planning.planner import Planner, PlanSettings
from sophon.loader.sources.assignment import Assignment
from sophon.loader.sources.samples import Samples
from sophon.loader.torch_import import torch
from sophon.plan.plan import Plan
from sophon.plan.policies import Options
from sophon.process.cores import cores_here
from sophon.process.renewal import renew_after_fork

MEASURED = ("optimal", "sophon", "fastflow")
"""Policies that measure first and then plan."""


def shared_array(count: int, dtype: Any) -> Any:
    """Return an array of zeros shared with forked or spawned worker processes; without torch, a plain array."""
    zeros = np.zeros(count, dtype)
    return zeros if torch is None else torch.from_numpy(zeros).share_memory_()  # type: ignore[no-untyped-call]


class SharedPlanning:
    """Plans for a data set and keeps its counts.

    Args:
        samples: Samples whose cuts are planned.
        policy: One of `MEASURED`; None where cuts are fixed.
        allow_lossy: Whether a plan may use codecs that change the tensors.
    """

    def __init__(self, samples: Samples, policy: str | None, allow_lossy: bool) -> None:
        self._owner = os.getpid()
        self.own_stats = Stats()
        self._ledger = Ledger() if Path("/proc/self/fd").is_dir() else None
        self._reporter: Reporter | None = None
        self._planner: Planner | None = None
        self._numbers: Any = None
        self._epoch: int | None = None
        renew_after_fork(self)
        can_plan = samples.sources[0].is_remote and samples.pipeline.max_cut > 0
        if policy is not None and can_plan and self._ledger is not None:
            settings = PlanSettings(policy=policy, options=Options(allow_lossy=allow_lossy))
            self._planner = Planner(samples, settings, float(cores_here()), self.own_stats, may_relay=False)
            self._numbers = shared_array(len(samples), np.uint8)
            self._samples = samples
            self.begin(0)

    def renew(self) -> None:
        """Restart the counts in a forked child: earlier counts belong to the parent."""
        self.own_stats, self._reporter = Stats(), None

    @property
    def is_mine(self) -> bool:
        """Whether this is the process that plans."""
        return os.getpid() == self._owner

    @property
    def stats(self) -> Stats:
        """The counts of all processes so far."""
        if self.is_mine:
            self._listen()
        return self.own_stats

    @property
    def plan(self) -> Plan | None:
        """The plan of this epoch, if there is one yet."""
        return None if self._planner is None else self._planner.plan

    def watcher(self) -> Planner | Reporter | None:
        """Return the observer of this process's requests; None if nothing is planned."""
        if self._numbers is None:
            return None
        return self._planner if self.is_mine else self._reports()

    def _reports(self) -> Reporter:
        if self._reporter is None:
            assert self._ledger is not None
            self._reporter = Reporter(self._ledger)
        return self._reporter

    def flush(self) -> None:
        """Report measurements and counts to the process that plans, if that is a different process."""
        if not self.is_mine and self._ledger is not None:
            self._reports().flush(self.own_stats)
            self.own_stats.clear()

    def begin(self, epoch: int) -> None:
        """Plan for an epoch, if this process plans and has not done so yet."""
        if self._planner is None or not self.is_mine or epoch == self._epoch:
            return
        self._listen()
        if self._epoch is not None:
            self._planner.end()
        self._epoch = epoch
        self._planner.begin(epoch, find_rank().size)
        made = self._samples.assignment
        numbers = np.zeros(len(self._samples), np.uint8) if made.number_of is None else made.number_of
        column = np.array([self._planner.cuts.index(cut) for cut in made.cuts], np.uint8)
        view = self._view()
        view[:] = column[numbers]
        self._samples.assignment = Assignment(self._planner.cuts, view)

    def _view(self) -> NDArray[np.uint8]:
        numbers: NDArray[np.uint8] = np.asarray(self._numbers)
        return numbers

    def _listen(self) -> None:
        if self._ledger is not None:
            replay(self._ledger.take(), self._planner, self.own_stats)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_planner": None, "_reporter": None, "own_stats": Stats()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        renew_after_fork(self)
        if self._numbers is not None:  # the array in the pickle is a copy, not the shared one
            self._samples.assignment = Assignment(self._samples.assignment.cuts, self._view())
