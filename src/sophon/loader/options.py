"""Options beyond torch's arguments: one frozen object for each concern, all optional."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from sophon.codec.cut import Cut
from sophon.errors import ConfigError
from sophon.loader.account.bad import DEFAULT_BUDGET
from sophon.loader.account.bad import POLICIES as ACTIONS
from sophon.loader.epoch.collate import OUTPUTS
from sophon.loader.machine.machine import MachineConfig
from sophon.loader.order.ranks import Rank, check_uneven, find_rank, rank_in
from sophon.loader.sources.verified import Verify
from sophon.plan.plan import Plan
from sophon.profile.explore import DEFAULT_SHARE

KINDS = ("threads", "processes")


def at_least(name: str, value: Any, least: int) -> None:
    """Raise unless a value is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}: expected an integer of at least {least}, got {value!r}")


@dataclass(frozen=True)
class Faults:
    """What to do when storage nodes are late or do not answer.

    Args:
        deadline_s: Seconds without any answer before an error is raised.
        hedge: Repeat a late request, at another node if there is one: after this many seconds of silence, or True to
            learn the time from other requests.
        fallback: Path of the same files, which are read directly while no storage node answers.
        verify: How to check what nodes send, for nodes that are not your own; costs some CPU.
    """

    deadline_s: float = MachineConfig.deadline_s
    hedge: bool | float = False
    fallback: str | PathLike[str] | None = None
    verify: Verify | None = None

    def __post_init__(self) -> None:
        if self.verify is not None and not isinstance(self.verify, Verify):
            raise ConfigError(f"verify: expected Verify(digests, samples), got {self.verify!r}")
        is_number = isinstance(self.deadline_s, int | float) and not isinstance(self.deadline_s, bool)
        if not is_number or not self.deadline_s > 0:  # not NaN either
            raise ConfigError(f"deadline_s: expected seconds above 0, got {self.deadline_s!r}")
        hedge = self.hedge
        if hedge is not False and not (isinstance(hedge, bool | int | float) and hedge > 0 and math.isfinite(hedge)):
            raise ConfigError(f"hedge: expected True, False or seconds above 0, got {hedge!r}")


@dataclass(frozen=True)
class Planning:
    """How the cuts of the samples are chosen.

    Args:
        policy: What `policy=` takes: "optimal", "sophon" or "fastflow", which measure and plan; "none", "all", "resize"
            or a cut such as "2:webp", the same for all samples; or a plan.
        profile: Where measurements are kept for the next run: a path; by default the user's cache folder; False for
            nowhere.
        share: Share of the samples that the first epoch sends in various codecs, to measure their cost.
        allow_lossy: Whether codecs that change the tensors may be used.
    """

    policy: str | Cut | Plan | Path | Sequence[str | Cut] | None = None
    profile: str | PathLike[str] | bool | None = None
    share: float = DEFAULT_SHARE
    allow_lossy: bool = False

    @property
    def profile_path(self) -> Path | None:
        """Where the profile is kept, if the user gave a path."""
        return None if self.profile is None or isinstance(self.profile, bool) else Path(self.profile)


@dataclass(frozen=True)
class OnError:
    """What to do with a sample that cannot be loaded.

    Args:
        action: "raise" its error, "substitute" the next good one in the data set, or "skip" it, which makes its batch
            smaller.
        budget: How many samples may be bad: a number, or a share of the data set; more raise a `BudgetError`.
    """

    action: str = "raise"
    budget: float = DEFAULT_BUDGET

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ConfigError(f"on_error: expected raise, substitute or skip, got {self.action!r}")


@dataclass(frozen=True)
class Output:
    """The form of batches.

    Args:
        kind: "torch" tensors, or "numpy" arrays, which need no torch.
        columns: Further columns and fields of the data set to include, as a dict; "id" is the sample's id, and a
            field comes as bytes.
        device: Device for the batches of a `DataLoader`, as torch names it: "cuda", "cuda:1", "cpu". If the recipe ends
            with ToTensor and Normalize, batches are transferred as bytes and converted to floats on the device, with
            bit-identical results. None leaves them on the host.
    """

    kind: str = "torch"
    columns: Sequence[str] = ()
    device: Any = None

    def __post_init__(self) -> None:
        if self.kind not in OUTPUTS:
            raise ConfigError(f"output: expected torch or numpy, got {self.kind!r}")
        if isinstance(self.columns, str) or not all(isinstance(name, str) for name in self.columns):
            raise ConfigError(f"columns: expected a sequence of names, got {self.columns!r}")
        if self.device is not None and self.kind != "torch":
            raise ConfigError(f'device: {self.device!r} takes tensors; use output="torch", or leave device out')
        object.__setattr__(self, "columns", tuple(self.columns))


@dataclass(frozen=True)
class Workers:
    """How samples are finished at the trainer, and how far ahead of the training loop; given as `num_workers`.

    Args:
        number: How many workers; 0 finishes samples in the iterating thread; "auto" adjusts the workers, the concurrent
            requests and the bytes read ahead to the measured bottleneck.
        kind: "threads" or "processes". By default processes if your own code is run (a step of the pipeline,
            target_transform, collate_fn or worker_init_fn), which may hold the GIL and draw from the global
            generators, and threads otherwise. Either way this process fetches and plans, and the batches are the same.
        buffer_bytes: Bound on the bytes of samples that were requested and are not yet handed out.
        max_requests: Number of concurrent requests; by default 2 for each node, or adjusted if `number` is "auto".
    """

    number: int | str = "auto"
    kind: str | None = None
    buffer_bytes: int = MachineConfig.buffer_bytes
    max_requests: int | None = None

    def __post_init__(self) -> None:
        if self.number != "auto":
            if isinstance(self.number, str):
                raise ConfigError(f'num_workers: expected an integer of at least 0, or "auto", got {self.number!r}')
            at_least("num_workers", self.number, 0)
        if self.kind is not None and self.kind not in KINDS:
            raise ConfigError(f"kind: expected threads or processes, got {self.kind!r}")
        at_least("buffer_bytes", self.buffer_bytes, 1)
        if self.max_requests is not None:
            at_least("max_requests", self.max_requests, 1)


@dataclass(frozen=True)
class Ranks:
    """Which of several training processes this is.

    By default the rank is taken from torch.distributed or the launcher's environment when an epoch starts. `Ranks(0,
    1)` is for a loader that only one rank uses, such as for validation.

    Args:
        rank: Number of this rank, from 0.
        size: Number of ranks.
        uneven: What to do if samples cannot be shared evenly: "pad" with some from the beginning of the order, as
            torch's DistributedSampler does, "drop" the last ones, or "raise".
        group: The data-parallel processes inside a larger world, where others share their samples (tensor or pipeline
            parallel): a process group, or a device mesh of one dimension such as ``mesh["dp"]``.
    """

    rank: int | None = None
    size: int | None = None
    uneven: str = "pad"
    group: Any = None

    def __post_init__(self) -> None:
        check_uneven(self.uneven)
        if (self.rank is None) != (self.size is None):
            raise ConfigError("rank and size go together; give both, or neither to detect them")
        if self.group is not None and self.rank is not None:
            raise ConfigError("give rank and size, or the group that knows them")
        if self.rank is not None:
            self.found()

    def found(self) -> Rank:
        """Return which process this is, as far as is known now."""
        if self.group is not None:
            return rank_in(self.group)
        return find_rank(self.rank, self.size)


@dataclass(frozen=True)
class Told:
    """All settings of a data set.

    Args:
        planning: How cuts are chosen.
        on_error: What to do with bad samples.
        output: The form of batches.
        faults: What to do when nodes are late or unreachable.
    """

    planning: Planning
    on_error: OnError
    output: Output
    faults: Faults

    @classmethod
    def of(cls, policy: Any, on_error: Any, output: Any, faults: Any) -> Told:
        """Return the full settings from their short forms."""
        if faults is not None and not isinstance(faults, Faults):
            raise ConfigError(f"faults: expected Faults(deadline_s=…, hedge=…, fallback=…), got {faults!r}")
        return cls(
            policy if isinstance(policy, Planning) else Planning(policy),
            on_error if isinstance(on_error, OnError) else OnError(on_error),
            output if isinstance(output, Output) else Output(output),
            faults or Faults(),
        )
