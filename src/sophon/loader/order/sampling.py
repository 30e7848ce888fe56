"""The samples of an epoch and their order: sophon's own, or a torch-style sampler's.

Sophon's own order is a function of (seed, epoch), and ranks divide it among themselves. A sampler is asked once, when
an epoch starts. As with torch's DataLoader, its samples are for this rank only and may repeat; random ops draw new
parameters for each occurrence, since each has a different key (`keys_of`). A sampler runs under its own seed, from
(seed, epoch), so it gives the same order after resuming and does not disturb the training loop's generators;
a sampler with its own generator or state uses that, and the state is saved instead.
"""

from __future__ import annotations

import base64
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sophon.errors import ArtifactError, ConfigError
from sophon.loader.order.order import Order, epoch_order
from sophon.loader.order.ranks import Rank, each, positions, share
from sophon.loader.torch_import import torch
from sophon.pipeline.rng import Key, Rng
from sophon.pipeline.seeding import seeded

_SAMPLER_POSITION = (1 << 32) + 2  # ops, collating and targets draw other random words


@dataclass(frozen=True)
class Row:
    """The samples of one rank, from the start of a pass to the end of the epoch.

    Args:
        samples: Indexes of the samples, in order.
        positions: Position of each in the order of the whole epoch, over all ranks.
        sizes: Samples in each batch, if a batch sampler determines that.
        keys: The numbers by which random ops identify the samples; None for their indexes.
    """

    samples: Order
    positions: Order
    sizes: tuple[int, ...] | None = None
    keys: Order | None = None


class Sampling(ABC):
    """Determines the order of samples.

    Attributes:
        is_shared: Whether ranks divide the order among themselves.
        is_shuffled: The shuffle setting, as recorded in a state.
    """

    is_shared = True
    is_shuffled = False

    @abstractmethod
    def row(self, epoch: int, cursor: int, rank: Rank) -> Row:
        """Return the rest of an epoch for one rank.

        Args:
            epoch: Number of the epoch.
            cursor: How many of its samples have been used, by all ranks that share it.
            rank: The rank whose samples to return.
        """

    @abstractmethod
    def batches(self, cursor: int, rank: Rank, size: int, drop_last: bool) -> int:
        """Return how many batches are left for one rank."""

    @abstractmethod
    def total(self) -> int:
        """Return how many samples an epoch has, over all ranks that share it."""

    @property
    def subset(self) -> str:
        """A digest of the samples that take part; "" for all."""
        return ""

    def state(self, epoch: int, is_ahead: bool) -> dict[str, Any] | None:  # noqa: ARG002 - part of the contract
        """Return the state to restore before an epoch can be started again, as JSON values.

        Args:
            epoch: The latest epoch, or the next one.
            is_ahead: Whether that epoch is still to come.
        """
        return None

    def load(self, state: dict[str, Any] | None) -> None:  # noqa: B027 - most have nothing to restore
        """Restore the result of `state`."""


class OwnOrder(Sampling):
    """All samples of a data set, or some of them, in the data set's order or in random order.

    Args:
        count: Samples in the data set.
        seed: Seed of the order.
        shuffle: Whether samples come in random order, a different one in each epoch.
        uneven: What to do if ranks cannot share the samples evenly.
        indices: The samples that take part; None for all.
    """

    def __init__(self, count: int, seed: int, shuffle: bool, uneven: str, indices: Order | None = None) -> None:
        self._count = count if indices is None else len(indices)
        self._seed = seed
        self.is_shuffled = shuffle
        self._uneven = uneven
        self._indices = indices
        self._keys = None if indices is None else keys_of(indices, count)

    def row(self, epoch: int, cursor: int, rank: Rank) -> Row:
        """Return the samples of one rank."""
        order = epoch_order(self._count, self._seed, epoch, shuffle=self.is_shuffled)
        mine = share(order, cursor, rank, self._uneven)
        keys = None if self._keys is None else self._keys[mine]
        samples = mine if self._indices is None else self._indices[mine]
        return Row(samples, positions(self._count, cursor, rank, self._uneven), keys=keys)

    def batches(self, cursor: int, rank: Rank, size: int, drop_last: bool) -> int:
        """Return how many batches are left; the same number on all ranks."""
        mine = each(max(self._count - cursor, 0), rank, self._uneven)
        return mine // size if drop_last else -(-mine // size)

    def total(self) -> int:
        """Return how many samples take part."""
        return self._count

    @property
    def subset(self) -> str:
        """A digest of the samples that take part."""
        return "" if self._indices is None else hashlib.sha256(self._indices.tobytes()).hexdigest()[:16]


class ToldOrder(Sampling):
    """The order of a sampler, or the batches of a batch sampler.

    Args:
        sampler: Gives indexes into the data set, or lists of them.
        gives_batches: Whether it is a batch sampler.
        count: Samples in the data set.
        seed: Seed of the run.
        indices: The samples that its indexes refer to; None for all samples of the data set.
    """

    is_shared = False
    is_shuffled = True

    def __init__(
        self, sampler: Iterable[Any], gives_batches: bool, count: int, seed: int, indices: Order | None = None
    ) -> None:
        self._sampler = sampler
        self._name = "batch_sampler" if gives_batches else "sampler"
        self._gives_batches = gives_batches
        self._count = count if indices is None else len(indices)
        self._all = count
        self._seed = seed
        self._indices = indices
        self._starts = np.zeros(1, np.int64)  # where each batch of the latest epoch starts
        self._epoch = -1  # the latest epoch that the sampler was asked for
        self._before: dict[str, Any] = {}  # the sampler's state at that time
        if not hasattr(sampler, "__iter__"):
            raise ConfigError(f"{self._name}: expected something to iterate over, got {sampler!r}")
        if not hasattr(sampler, "__len__"):
            raise ConfigError(
                f"{self._name}: {type(sampler).__name__} has no length, and an epoch is planned and resumed as a "
                "whole; give it a __len__, or use a RemoteDataset with torch's own DataLoader"
            )

    def row(self, epoch: int, cursor: int, rank: Rank) -> Row:  # noqa: ARG002 - a sampler knows its rank itself
        """Ask the sampler for an epoch, and leave out the samples that have been used."""
        self._epoch, self._before = epoch, _state_of(self._sampler)
        if self._before:
            told = list(self._sampler)
        else:
            with seeded(Rng(Key(self._seed, epoch, 0), _SAMPLER_POSITION).word()):
                told = list(self._sampler)
        if not self._gives_batches:
            return self._row(self._checked(told), cursor)
        groups = [self._checked(_as_list(group)) for group in told]
        self._starts = starts = np.concatenate([[0], np.cumsum([len(group) for group in groups], dtype=np.int64)])
        done = int(np.searchsorted(starts, cursor))
        if int(starts[min(done, len(groups))]) != cursor:
            raise ArtifactError(
                f"{self._name}: the state was taken after {cursor:,} samples, where no batch ends; it belongs to "
                "a different sampler"
            )
        sizes = tuple(len(group) for group in groups[done:] if len(group))
        return self._row(np.concatenate([np.zeros(0, np.int64), *groups]), cursor, sizes)

    def _row(self, samples: Order, cursor: int, sizes: tuple[int, ...] | None = None) -> Row:
        # Over the whole epoch, including the used part: a sample keeps its number when a run is resumed.
        keys = keys_of(samples, self._all)
        left = samples[cursor:]
        return Row(left, np.arange(cursor, len(samples)), sizes, None if keys is None else keys[cursor:])

    def _checked(self, indexes: Sequence[Any]) -> Order:
        try:
            found = np.array([int(index) for index in indexes], np.int64)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"{self._name}: expected integers, got {str(indexes)[:80]}: {error}") from error
        if len(found) and not (-self._count <= found.min() and found.max() < self._count):
            wrong = found.max() if found.max() >= self._count else found.min()
            raise IndexError(f"{self._name}: the data set has {self._count:,} samples; there is no sample {wrong}")
        found %= max(self._count, 1)
        return found if self._indices is None else self._indices[found]

    def batches(self, cursor: int, rank: Rank, size: int, drop_last: bool) -> int:  # noqa: ARG002 - as above
        """Return how many batches are left, by the sampler's length."""
        length = len(self._sampler)  # type: ignore[arg-type]  # checked when it was given
        if self._gives_batches:
            # The number of used batches is known once the sampler has been asked; until then none are assumed.
            return length - int(np.searchsorted(self._starts, cursor)) if len(self._starts) > 1 else length
        mine = max(length - cursor, 0)
        return mine // size if drop_last else -(-mine // size)

    def total(self) -> int:
        """Return how many samples an epoch has; a very large number if only batches are counted."""
        return 1 << 62 if self._gives_batches else len(self._sampler)  # type: ignore[arg-type]

    def state(self, epoch: int, is_ahead: bool) -> dict[str, Any] | None:
        """Return the state that the sampler had when the latest epoch began."""
        was_asked = self._epoch == epoch and not is_ahead
        return self._before if was_asked else _state_of(self._sampler)

    def load(self, state: dict[str, Any] | None) -> None:
        """Restore the sampler to the start of an epoch."""
        _restore(self._sampler, state, self._name)


def keys_of(samples: Order, count: int) -> Order | None:
    """Return the numbers by which random ops identify samples: the index, plus `count` for each earlier occurrence.

    Args:
        samples: The samples of an epoch, in order.
        count: Number of samples in the data set; it keeps the keys of different samples apart.

    Returns:
        None if no sample is repeated.
    """
    order = np.argsort(samples, kind="stable")
    ranked, places = samples[order], np.arange(len(samples))
    is_first = np.ones(len(samples), bool)
    is_first[1:] = ranked[1:] != ranked[:-1]
    if is_first.all():
        return None
    before = np.empty(len(samples), np.int64)
    before[order] = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return samples + before * count


def _as_list(group: Any) -> list[Any]:
    if not isinstance(group, Iterable):
        raise ConfigError(f"batch_sampler: expected lists of indexes, got {group!r}")
    return list(group)


def _inner(sampler: Any) -> Any:
    """Return the sampler that determines the order, such as the one inside a `BatchSampler`."""
    return getattr(sampler, "sampler", sampler)


def _state_of(sampler: Any) -> dict[str, Any]:
    """Return the state that a sampler's order depends on besides the global generators; {} if there is none."""
    for one in (sampler, _inner(sampler)):
        if hasattr(one, "state_dict") and hasattr(one, "load_state_dict"):
            return {"state": one.state_dict()}
        generator = getattr(one, "generator", None)
        if torch is not None and isinstance(generator, torch.Generator):
            return {"generator": base64.b64encode(generator.get_state().numpy().tobytes()).decode()}
    return {}


def _restore(sampler: Any, state: dict[str, Any] | None, name: str) -> None:
    if not state:
        return
    for one in (sampler, _inner(sampler)):
        if "state" in state and hasattr(one, "load_state_dict"):
            one.load_state_dict(state["state"])
            return
        generator = getattr(one, "generator", None)
        if "generator" in state and torch is not None and isinstance(generator, torch.Generator):
            data = np.frombuffer(base64.b64decode(state["generator"]), np.uint8).copy()
            generator.set_state(torch.from_numpy(data))
            return
    raise ArtifactError(
        f"the state was saved with a {name} that keeps its own state, but the {name} here takes none; create it as "
        "before"
    )
