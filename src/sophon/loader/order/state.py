"""The position of a loader: a few numbers from which another run can continue, even in the middle of an epoch.

The samples that are left are a function of (seed, epoch, cursor) and of the data set; so the state has the same size
for ten samples and for ten million, and is independent of workers, ranks, batch size and cuts, which may all change. In
the middle of a relaxed epoch, the few samples delivered out of turn are listed too (`turns`); these are specific to a
rank, and so is that state.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sophon.errors import ArtifactError
from sophon.loader.order.turns import Turns

_FORMAT = 1
_MOST = 2**63 - 1  # what an epoch may be
_MUST_AGREE = {
    "samples": "a different number of samples in the data set",
    "dataset": "a different data set, or its files have changed",
    "pipeline": "another pipeline",
    "seed": "another seed",
    "shuffle": "a different shuffle setting",
}


@dataclass(frozen=True)
class State:
    """A position in a run.

    Args:
        seed: Seed of the order and of all random ops.
        epoch: Number of the epoch.
        cursor: How many samples of the epoch's global order have been used, by all ranks together.
        samples: Number of samples in the data set.
        shuffle: Whether the order is a random one.
        dataset: Fingerprint of the data set.
        pipeline: Fingerprint of the pipeline.
        plan: How many plans were made; informational, since plans change no bit.
        turns: Samples delivered out of turn, from `Turns.to_dict`; None if everything came in order.
        sampler: State of the user's own sampler when the epoch started; None if there is none.
    """

    seed: int
    epoch: int
    cursor: int
    samples: int
    shuffle: bool
    dataset: str
    pipeline: str
    plan: int = 0
    turns: dict[str, Any] | None = None
    sampler: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        state = {"format": _FORMAT, **vars(self)}
        for name in ("turns", "sampler"):
            if state[name] is None:
                del state[name]
        return state

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
            if type(value) is not kind or not value >= 0 or (name != "seed" and value > _MOST):
                raise ArtifactError(f"state: {name}: expected an integer of at least 0, got {value!r:.40}")
        if made.cursor > made.samples:
            raise ArtifactError(f"state: cursor: expected at most {made.samples:,}, all samples, got {made.cursor:,}")
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
                f"this state belongs to a different run: {found}. Create the loader as it was when the state was "
                "saved, or start a new epoch with set_epoch."
            )


class Place:
    """The progress of a run: which epoch comes next, and how far the latest one has got.

    Concurrency: the training loop updates it, and any thread may read it: `at` is replaced as a whole.

    Attributes:
        next_epoch: The epoch of the next pass.
        at: The epoch of the latest pass, or of the next one if there was none yet or a state was loaded since; how much
            of it is used up; and which samples were delivered out of turn, if that is possible.
        is_ahead: Whether that pass is still to come.
    """

    def __init__(self) -> None:
        self.next_epoch = 0
        self.at: tuple[int, int, Turns | None] = (0, 0, None)
        self.is_ahead = True
        self._before: tuple[int, tuple[int, int, Turns | None], bool] | None = None  # before the latest pass started

    @property
    def epoch(self) -> int:
        """The epoch of `at`."""
        return self.at[0]

    @property
    def cursor(self) -> int:
        """How many samples of that epoch have been used."""
        return self.at[1]

    def set_epoch(self, epoch: int) -> None:
        """Continue with this epoch, from the middle if a state was loaded for it."""
        self.next_epoch, self._before = epoch, None
        if not (self.is_ahead and self.epoch == epoch):
            self.at, self.is_ahead = (epoch, 0, None), True

    def load(self, epoch: int, cursor: int, is_over: bool, turns: Turns | None = None) -> None:
        """Continue after the used part; if nothing is left of that epoch, with the next one.

        A loop that keeps count itself and asks for the finished epoch with `set_epoch` gets an empty pass.
        """
        self.at, self.is_ahead, self._before = (epoch, cursor, turns), True, None
        self.next_epoch = epoch + is_over

    def begin(self) -> tuple[int, int, Turns | None]:
        """Start a pass; return its epoch, the cursor, and the samples already delivered out of turn."""
        epoch = self.next_epoch
        self._before = epoch, self.at, self.is_ahead
        self.at = self.at if self.is_ahead and self.epoch == epoch else (epoch, 0, None)
        self.next_epoch, self.is_ahead = epoch + 1, False
        return self.at

    def take_back(self) -> None:
        """Undo the start of the latest pass, if nothing was requested from it and nothing else has changed."""
        if self._before is not None:
            self.next_epoch, self.at, self.is_ahead = self._before

    def move(self, epoch: int, cursor: int, turns: Turns | None = None) -> None:
        """Record the progress of a pass, if it is still the latest."""
        if self.epoch == epoch and not self.is_ahead:
            self.at = (epoch, cursor, turns)

    def end(self, epoch: int) -> None:
        """Record that a pass is over: the state is now the start of the next one."""
        if self.epoch == epoch and not self.is_ahead:
            self.set_epoch(self.next_epoch)
