"""Where a loader stands: a few numbers that another run can go on from, in the middle of an epoch.

The samples that are left are a function of (seed, epoch, cursor) and of the data set; so the state has the same size
for ten samples and for ten million, and says nothing of workers, ranks, batch size or cuts, which may all be others.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sophon.errors import ArtifactError

_FORMAT = 1
_MUST_AGREE = {
    "samples": "another number of samples in the data set",
    "dataset": "another data set, or its files have changed",
    "pipeline": "another pipeline",
    "seed": "another seed",
    "shuffle": "another setting of shuffle",
}


@dataclass(frozen=True)
class State:
    """A place in a run.

    Args:
        seed: Of the order and of all random ops.
        epoch: Which epoch.
        cursor: How many samples of the epoch's global order are used up, by all ranks together.
        samples: In the data set.
        shuffle: Whether the order is a random one.
        dataset: Fingerprint of the data set.
        pipeline: Fingerprint of the pipeline.
        plan: How often a plan was made; for the record, since plans change no bit.
    """

    seed: int
    epoch: int
    cursor: int
    samples: int
    shuffle: bool
    dataset: str
    pipeline: str
    plan: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"format": _FORMAT, **vars(self)}

    @classmethod
    def from_dict(cls, state: Any) -> State:
        """Return the state that was saved; raise `ArtifactError` for anything else."""
        if not isinstance(state, dict) or state.get("format") != _FORMAT:
            found = state.get("format") if isinstance(state, dict) else type(state).__name__
            raise ArtifactError(f"expected the state of a sophon loader, format {_FORMAT}, got {found!r}")
        try:
            made = cls(**{name: value for name, value in state.items() if name != "format"})
        except TypeError as error:
            raise ArtifactError(f"not the state of a sophon loader: {error}") from error
        for name, kind in (("seed", int), ("epoch", int), ("cursor", int), ("samples", int), ("plan", int)):
            value = getattr(made, name)
            if type(value) is not kind or value < 0:
                raise ArtifactError(f"state: {name}: expected an integer of at least 0, got {value!r}")
        return made

    def require(self, here: State) -> None:
        """Raise unless this state belongs to the same run as another one."""
        saved, ours = asdict(self), asdict(here)
        wrong = [name for name in _MUST_AGREE if saved[name] != ours[name]]
        if wrong:
            found = "; ".join(
                f"{_MUST_AGREE[name]} (saved {name}={saved[name]!r}, here {name}={ours[name]!r})" for name in wrong
            )
            raise ArtifactError(
                f"this state belongs to another run: {found}. Make the loader as it was when the state was saved, or "
                "start an epoch anew with set_epoch."
            )


class Place:
    """Where a run stands: which epoch comes next, and how far the latest one has come.

    Attributes:
        next_epoch: The epoch of the next pass.
        epoch: The epoch of the latest pass, or of the next one if there was none yet or a state was loaded since.
        cursor: How much of that epoch is used up.
        is_ahead: Whether that pass is still to come.
    """

    def __init__(self) -> None:
        self.next_epoch = self.epoch = self.cursor = 0
        self.is_ahead = True

    def set_epoch(self, epoch: int) -> None:
        """Go on with this epoch; in the middle of it, if that is where a state was loaded."""
        self.next_epoch = epoch
        if not (self.is_ahead and self.epoch == epoch):
            self.epoch, self.cursor, self.is_ahead = epoch, 0, True

    def load(self, epoch: int, cursor: int, is_over: bool) -> None:
        """Go on behind what is used up; if nothing is left of that epoch, with the next one.

        Whoever then asks for the finished epoch by `set_epoch`, keeping count himself, gets the nothing that is left.
        """
        self.epoch, self.cursor, self.is_ahead = epoch, cursor, True
        self.next_epoch = epoch + is_over

    def begin(self) -> tuple[int, int]:
        """Begin a pass; return its epoch and where in it."""
        epoch = self.next_epoch
        self.cursor = self.cursor if self.is_ahead and self.epoch == epoch else 0
        self.epoch, self.next_epoch, self.is_ahead = epoch, epoch + 1, False
        return epoch, self.cursor

    def move(self, epoch: int, cursor: int) -> None:
        """Note how far a pass has come, if it is still the latest."""
        if self.epoch == epoch and not self.is_ahead:
            self.cursor = cursor

    def end(self, epoch: int) -> None:
        """Note that a pass is over: the state is that of the beginning of the next one."""
        if self.epoch == epoch and not self.is_ahead:
            self.set_epoch(self.next_epoch)
