"""Determines which of several training processes this is, and which samples of an epoch belong to it.

The global order of an epoch depends only on (seed, epoch). Rank r of R takes its positions r, r + R, r + 2R, … as
torch's `DistributedSampler` does, all ranks in step: so after s steps of `batch_size` the first s × batch_size × R
samples of the global order are used up, whichever rank had them. That one number, the *cursor*, is all that another run
needs to continue, with any number of ranks or workers.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from sophon.errors import ConfigError, RankError
from sophon.loader.order.order import Order
from sophon.loader.torch_import import torch

UNEVEN = ("pad", "drop", "raise")


@dataclass(frozen=True)
class Rank:
    """One of several training processes that share an epoch.

    Args:
        rank: Number of this rank, from 0.
        size: Number of ranks.
    """

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        for name, value in (("rank", self.rank), ("size", self.size)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{name}: expected an integer, got {value!r}")
        if not 0 <= self.rank < self.size:
            raise ConfigError(f"expected a rank in 0 … size - 1, got rank {self.rank} of {self.size}")


def find_rank(rank: int | None = None, size: int | None = None) -> Rank:
    """Return which rank this is: as given, from torch.distributed, or from torchrun's environment.

    Launchers differ in when they provide the rank: Lightning starts processes without RANK and joins them later. So
    this is called when an epoch starts, not when a loader is created.

    Args:
        rank: Rank given by the user; None to find out.
        size: Number of ranks given by the user; None to find out.
    """
    if (rank is None) != (size is None):
        raise ConfigError("rank and size go together; give both, or neither to detect them")
    if rank is not None and size is not None:
        return Rank(rank, size)
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return Rank(torch.distributed.get_rank(), torch.distributed.get_world_size())
    said = _environment("WORLD_SIZE")
    if said is None or said == 1:
        return Rank()
    mine = _environment("RANK")
    if mine is None:
        # A guess would silently train every process on all samples.
        raise RankError(
            f"WORLD_SIZE is {said} but RANK is not set, and torch.distributed is not initialised; start with "
            "torchrun, start the epoch after init_process_group, or give ranks=Ranks(rank, size)"
        )
    return Rank(mine, said)


def rank_in(group: Any) -> Rank:
    """Return which process this is in a process group or a one-dimensional device mesh."""
    if hasattr(group, "get_local_rank") and hasattr(group, "ndim"):
        if group.ndim != 1:
            raise ConfigError(f'group: expected a device mesh of one dimension, such as mesh["dp"], got {group.ndim}')
        return Rank(int(group.get_local_rank()), int(group.size()))
    if torch is None or not torch.distributed.is_initialized():
        raise RankError("group: torch.distributed is not initialised; call init_process_group before the first epoch")
    rank = torch.distributed.get_rank(group)
    if rank < 0:
        raise ConfigError("group: this process is not a member; give the data-parallel group to which it belongs")
    return Rank(rank, torch.distributed.get_world_size(group))


def ranks_here(size: int) -> int:
    """Return how many ranks share this machine, from torchrun's environment; 1 if it is not set.

    Args:
        size: Number of ranks.
    """
    return min(max(_environment("LOCAL_WORLD_SIZE") or 1, 1), size)


def _environment(name: str) -> int | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(f"{name}={text!r} in the environment: expected an integer") from error


def each(count: int, ranks: Rank, uneven: str) -> int:
    """Return how many of `count` samples every rank gets: the same number, so that all take the same number of steps.

    Args:
        count: Remaining samples of the epoch.
        ranks: The ranks that share them.
        uneven: What to do if the samples cannot be shared evenly: "pad" with samples from the beginning of the order,
            "drop" the last ones, or "raise" an error.
    """
    over = count % ranks.size
    if over and uneven == "raise":
        raise ConfigError(
            f"{count:,} samples cannot be shared evenly by {ranks.size} ranks, and ranks with different numbers of "
            "steps "
            'wait for each other forever; Ranks(uneven="pad") repeats a few samples, uneven="drop" leaves a few out'
        )
    return count // ranks.size if uneven == "drop" else -(-count // ranks.size)


def positions(count: int, cursor: int, ranks: Rank, uneven: str) -> Order:
    """Return the positions of one rank's samples in the global order, from the cursor to the end of the epoch.

    Positions from `count` on are padding: they stand for the samples at the start of the order.

    Args:
        count: Samples in the epoch.
        cursor: How many of them have been used.
        ranks: The rank whose share to return.
        uneven: See `each`.
    """
    whole = each(max(count - cursor, 0), ranks, uneven) * ranks.size
    return np.arange(cursor + ranks.rank, cursor + whole, ranks.size, dtype=np.int64)


def share(order: Order, cursor: int, ranks: Rank, uneven: str) -> Order:
    """Return the samples of one rank, from the cursor to the end of the epoch.

    Args:
        order: The global order.
        cursor: How many of its samples have been used.
        ranks: The rank whose share to return.
        uneven: See `each`.
    """
    mine = positions(len(order), cursor, ranks, uneven)
    result: Order = order[mine % len(order)] if len(order) else order
    return result


def check_uneven(uneven: Any) -> str:
    """Return the option for samples that cannot be shared evenly, if it is valid."""
    if uneven not in UNEVEN:
        raise ConfigError(f"uneven: expected pad, drop or raise, got {uneven!r}")
    return str(uneven)
