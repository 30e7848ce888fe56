"""Tracks which samples of an epoch a rank has delivered, when some are delivered out of turn.

A rank's samples form a row, from its starting point in the epoch; their positions are 0, 1, 2, … After P of them have
been delivered, it is enough to know which positions below P have not been delivered (*late*) and which from P on have
(*early*). There are equally many of each. The remaining samples come in this order: the late ones, then the others.

**There are few of them, whatever the size of the data set.** Let a part of the epoch start at P₀ places, in batches of
B, where samples may come D batches late, and let the first of the late ones be s₀ places back. With x = position - P₀,
a sample may come no later than in batch (x + S) // B of the part, where S = max(D·B, s₀). After K batches of the part,
at P = P₀ + K·B places, a late sample has x < K·B, being late, and (x + S) // B ≥ K, being still to come: so K·B - S ≤ x
< K·B. None is more than S places back, and there are at most S of them. However often a run continues from its state, S
is thus D·B; if D or B change on the way, it is at most the largest D·B so far.

**The order can be kept.** The first of the remaining samples has x ≥ -S and each next one is at least one further, so
the i-th has x ≥ i - S, and its last batch, (x + S) // B, is not before i // B, where it is in strict order. And no
batch is the last one of more than B samples, since these have B different x. That is all that `placement` needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon.errors import ArtifactError, ConfigError
from sophon.loader.order.ranks import Rank

Positions = NDArray[np.int64]


def _none() -> Positions:
    return np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Turns:
    """The progress of one rank in an epoch; immutable, so that another thread may read it.

    Args:
        ranks: Which rank, of how many.
        begun: Number of samples in the epoch's global order that were used before the row starts.
        places: How many samples of the row were delivered.
        late: Positions below `places` that were not delivered, ascending.
        early: Positions from `places` on that were delivered, ascending.
    """

    ranks: Rank
    begun: int
    places: int = 0
    late: Positions = field(default_factory=_none)
    early: Positions = field(default_factory=_none)

    def left(self, count: int) -> Positions:
        """Return the remaining positions of a row of `count` samples, in delivery order."""
        if len(self.early) and self.early[-1] >= count:
            raise ArtifactError(
                f"this state belongs to a row of more than {count:,} samples; create the loader as before, with the "
                "same uneven setting"
            )
        rest = np.arange(self.places, count)
        return np.concatenate([self.late, np.setdiff1d(rest, self.early, assume_unique=True)])

    def latest(self, left: Positions, batch_size: int, max_delay: int) -> Positions:
        """Return, for each remaining sample, the last batch that it may be in, counted from here."""
        slack = max(max_delay * batch_size, self.places - int(self.late[0]) if len(self.late) else 0)
        return (left - self.places + slack) // batch_size

    def after(self, handed: Positions) -> Turns:
        """Return the rank's progress once these positions are delivered too."""
        places = self.places + len(handed)
        out = np.concatenate([self.early, handed])
        due = np.concatenate([self.late, np.arange(self.places, places)])
        late = np.setdiff1d(due, out, assume_unique=True)  # keeps the order
        return Turns(self.ranks, self.begun, places, late, np.sort(out[out >= places]))

    @cached_property
    def _lists(self) -> tuple[list[int], list[int]]:
        return self.late.tolist(), self.early.tolist()

    def to_dict(self) -> dict[str, Any]:
        """Return the progress as JSON values, without the number of places, which follows from the state's cursor."""
        late, early = self._lists
        rank, size = self.ranks.rank, self.ranks.size
        return {"rank": rank, "world_size": size, "begun": self.begun, "late": late[:], "early": early[:]}

    @classmethod
    def from_dict(cls, saved: Any, cursor: int, ranks: Rank) -> Turns:
        """Return the saved progress, if it belongs to this rank.

        Args:
            saved: Result of `to_dict`.
            cursor: Cursor of the state that contains it.
            ranks: Rank of this process.

        Raises:
            ArtifactError: The progress belongs to another rank, or is damaged.
        """
        try:
            whose = Rank(saved["rank"], saved["world_size"])
            begun, late, early = saved["begun"], _ascending(saved["late"]), _ascending(saved["early"])
            places, over = divmod(cursor - begun, whose.size)
            if over or begun < 0 or places < 0 or len(late) != len(early) or len(saved) != 5:
                raise ValueError("the numbers are inconsistent")
            if len(late) and (late[-1] >= places or early[0] < places):
                raise ValueError("late or early positions are wrong")
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"state: turns: not written by a sophon loader ({error})") from error
        if whose != ranks:
            raise ArtifactError(
                f"this state was taken in the middle of a relaxed epoch by rank {whose.rank} of {whose.size} but this "
                f"is rank {ranks.rank} of {ranks.size}. Samples were delivered out of turn there, so only the same "
                "rank of the same number of ranks can continue from it. Save the state on every rank and load each "
                "rank's own; or save it between two epochs, when it fits all."
            )
        return cls(whose, begun, places, late, early)


def _ascending(values: Any) -> Positions:
    """Return positions as an array; raise unless they are integers in ascending order."""
    if not isinstance(values, list | tuple) or any(type(value) is not int for value in values):
        raise TypeError("positions must be integers")
    if any(not 0 <= value < 1 << 63 for value in values):
        raise ValueError("positions must lie within a data set")
    found = np.array(values, np.int64)
    if (np.diff(found) <= 0).any():
        raise ValueError("positions must ascend from 0")
    return found
