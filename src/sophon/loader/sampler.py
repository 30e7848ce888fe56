"""A sampler for torch's own DataLoader: it passes the epoch with every index, so `set_epoch` is not needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sophon.errors import ConfigError
from sophon.loader.dataset import RemoteDataset
from sophon.loader.options import Ranks
from sophon.loader.order.order import Order, epoch_order
from sophon.loader.order.ranks import each, positions, share
from sophon.loader.order.state import Place, State
from sophon.loader.order.turns import Positions, Turns
from sophon.loader.torch_import import Sampler


@dataclass(frozen=True)
class Pass:
    """The samples of one pass.

    Args:
        epoch: Number of the epoch.
        samples: Indexes of the samples, in the order they are wanted.
        positions: Position of each in the order of the whole epoch, over all ranks.
    """

    epoch: int
    samples: Order
    positions: Positions


class EpochCallback:
    """Tells a `RemoteDataset` about epochs under Hugging Face's Trainer: ``Trainer(…, callbacks=[EpochCallback()])``.

    The Trainer tells its sampler; with several processes, or after resuming in the middle of an epoch, it does not
    tell the data set, whose random ops would then be those of epoch 0.
    """

    def on_epoch_begin(self, _args: Any, state: Any, _control: Any, **more: Any) -> None:
        """Tell the data set which epoch starts or continues."""
        epoch = int((state.epoch or 0) + 1e-6)  # a fraction of an epoch, if it continues one
        for dataset in _members(more["train_dataloader"].dataset):
            if isinstance(dataset, RemoteDataset):
                dataset.set_epoch(epoch)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):  # the Trainer calls all events; transformers is not imported for that
            return lambda *_, **__: None
        raise AttributeError(f"EpochCallback has no attribute {name!r}")


def _members(dataset: Any) -> list[Any]:
    """Return the data sets that torch's `Subset` and `ConcatDataset` are made of."""
    if hasattr(dataset, "datasets"):
        return [one for member in dataset.datasets for one in _members(member)]
    return _members(dataset.dataset) if hasattr(dataset, "indices") else [dataset]


class EpochSampler(Sampler[Any]):
    """Yields (epoch, index) in the order of sophon's own loader; every pass is the next epoch.

    Args:
        dataset: The data set; only its length matters for the order.
        shuffle: Whether the order is random rather than the data set's own.
        seed: Seed of that order.
        ranks: Which of several training processes this is, and what to do if samples cannot be shared evenly. By
            default this process gets all samples, since Lightning and Accelerate divide a sampler's samples themselves.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        shuffle: bool = False,
        seed: int = 0,
        ranks: Ranks | None = None,
    ) -> None:
        self._dataset = dataset
        self._count = len(dataset)
        self._shuffle = shuffle
        self._seed = seed
        told = ranks or Ranks(0, 1)
        self.ranks = told.found()
        self._uneven = told.uneven
        self.place = Place()
        self._left: Positions | None = None  # in the latest pass, if samples were delivered out of turn before it

    @property
    def epoch(self) -> int:
        """The epoch of the next pass."""
        return self.place.next_epoch

    def set_epoch(self, epoch: int) -> None:
        """Continue with this epoch, from the middle if a state was loaded for it."""
        self.place.set_epoch(epoch)

    def __len__(self) -> int:
        return each(self._count, self.ranks, self._uneven)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        begun = self.begin()
        return ((begun.epoch, int(sample)) for sample in begun.samples)

    def begin(self) -> Pass:
        """Begin the next pass and return its samples."""
        epoch, cursor, turns = self.place.begin()
        if isinstance(self._dataset, RemoteDataset):
            self._dataset.set_epoch(epoch)  # this may make a new plan
        order = epoch_order(self._count, self._seed, epoch, shuffle=self._shuffle)
        since = cursor if turns is None else turns.begun
        row = share(order, since, self.ranks, self._uneven)
        position = positions(self._count, since, self.ranks, self._uneven)
        self._left = None if turns is None else turns.left(len(row))
        return Pass(epoch, row, position) if self._left is None else Pass(epoch, row[self._left], position[self._left])

    def left(self, start: int, stop: int) -> Positions:
        """Return the positions of samples `start` to `stop` of the latest pass in this rank's row."""
        return np.arange(start, stop) if self._left is None else self._left[start:stop]

    def state_dict(self, taken: int) -> dict[str, Any]:
        """Return the position of the training loop: a small dict of JSON values, the same on all ranks.

        Args:
            taken: Samples that this rank's loop has received in the latest pass: batches × batch size. Only the loop
                knows: torch's DataLoader draws from the sampler ahead of time.
        """
        if isinstance(taken, bool) or not isinstance(taken, int) or taken < 0:
            raise ConfigError(
                f"taken: expected the number of samples that the loop has received in this pass, got {taken!r}"
            )
        if taken and self.place.is_ahead:
            raise ConfigError(f"taken is {taken}, but nothing has been requested from this sampler yet")
        epoch, begun, turns = self.place.at
        cursor = min(begun + taken * self.ranks.size, self._count)
        if turns is not None and taken and self._left is not None:
            turns = None if cursor == self._count else turns.after(self._left[:taken])
        return self._state(epoch, cursor, turns).to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state, even with a different number of workers or ranks, or a different batch size."""
        saved = State.from_dict(state)
        saved.require(self._state(saved.epoch, saved.cursor))
        turns = None if saved.turns is None else Turns.from_dict(saved.turns, saved.cursor, self.ranks)
        left = each(self._count - saved.cursor, self.ranks, self._uneven)
        self.place.load(saved.epoch, saved.cursor, left == 0, turns)

    def _state(self, epoch: int, cursor: int, turns: Turns | None = None) -> State:
        opened, pipeline = getattr(self._dataset, "opened", None), getattr(self._dataset, "pipeline", None)
        return State(
            seed=self._seed,
            epoch=epoch,
            cursor=cursor,
            samples=self._count,
            shuffle=self._shuffle,
            dataset=getattr(opened, "fingerprint", ""),
            pipeline=getattr(pipeline, "fingerprint", ""),
            turns=None if turns is None else turns.to_dict(),
        )
