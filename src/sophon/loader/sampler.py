"""Samplers for torch's own DataLoader: they tell the epoch with every index, so that nothing needs `set_epoch`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sophon.errors import ConfigError
from sophon.loader.order import epoch_order
from sophon.loader.ranks import Ranks, check_uneven, each, share
from sophon.loader.state import Place, State
from sophon.loader.torch_import import Sampler


class EpochSampler(Sampler[Any]):
    """Yields (epoch, index) in the order of sophon's own loader; every pass is the next epoch.

    Args:
        dataset: Whose length counts.
        shuffle: In random order, or in the order of the data set.
        seed: Of that order.
        rank: Which of several training processes this is. By default all samples are ours, since Lightning and
            Accelerate divide what a sampler gives by themselves.
        world_size: How many there are.
        uneven: What to do if the samples cannot be shared evenly: "pad", "drop" or "raise".
    """

    def __init__(
        self,
        dataset: Any,
        *,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        uneven: str = "pad",
    ) -> None:
        self._dataset = dataset
        self._count = len(dataset)
        self._shuffle = shuffle
        self._seed = seed
        self.ranks = Ranks(rank, world_size)
        self._uneven = check_uneven(uneven)
        self.place = Place()

    @property
    def epoch(self) -> int:
        """The epoch of the next pass."""
        return self.place.next_epoch

    def set_epoch(self, epoch: int) -> None:
        """Go on with this epoch; in the middle of it, if that is where a state was loaded."""
        self.place.set_epoch(epoch)

    def __len__(self) -> int:
        return each(self._count, self.ranks, self._uneven)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        epoch, cursor = self.place.begin()
        order = epoch_order(self._count, self._seed, epoch, shuffle=self._shuffle)
        mine = share(order, cursor, self.ranks, self._uneven)
        return ((epoch, int(sample)) for sample in mine)

    def state_dict(self, taken: int) -> dict[str, Any]:
        """Return where the training loop stands, as a small dict of JSON values, the same on all ranks.

        Args:
            taken: Samples that the loop of this rank has got in the latest pass: batches × batch size. Only the loop
                knows: torch's DataLoader asks the sampler ahead of it.
        """
        if isinstance(taken, bool) or not isinstance(taken, int) or taken < 0:
            raise ConfigError(f"taken: expected how many samples the loop has got in this pass, got {taken!r}")
        if taken and self.place.is_ahead:
            raise ConfigError(f"taken is {taken}, but nothing was asked of this sampler yet")
        cursor = min(self.place.cursor + taken * self.ranks.size, self._count)
        return self._state(self.place.epoch, cursor).to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken, also with another number of workers or ranks, or another batch size."""
        saved = State.from_dict(state)
        saved.require(self._state(saved.epoch, saved.cursor))
        left = each(self._count - saved.cursor, self.ranks, self._uneven)
        self.place.load(saved.epoch, saved.cursor, is_over=left == 0)

    def _state(self, epoch: int, cursor: int) -> State:
        opened, pipeline = getattr(self._dataset, "opened", None), getattr(self._dataset, "pipeline", None)
        return State(
            seed=self._seed,
            epoch=epoch,
            cursor=cursor,
            samples=self._count,
            shuffle=self._shuffle,
            dataset=getattr(opened, "fingerprint", ""),
            pipeline=getattr(pipeline, "fingerprint", ""),
        )
