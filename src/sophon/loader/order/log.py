"""The order of samples in batches: the epoch's order, the order in which they are finished, or a recorded one.

In relaxed order a batch holds whatever is finished first, so the sequence of batches depends on the machine. Each
sample's tensor does not: it is a function of (seed, epoch, sample). So the order of samples is all that has to be
recorded to repeat a run bit for bit, with any number of workers.

A run that was stopped in the middle of an epoch and then resumed has recorded the epoch in parts. Each part knows how
many samples came before it, and `Replay([first, second])` puts them together; a single part can be replayed from the
state that it started with. Parts that do not fit are rejected.
"""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sophon import artifact
from sophon.artifact import Header
from sophon.errors import ArtifactError, ConfigError
from sophon.loader.order.order import Order
from sophon.loader.order.ranks import Rank
from sophon.loader.order.turns import Turns

_FORMAT = "order-log"
_VERSION = 2
# 32 batches of 4 samples are two seconds at 15 ms each: twice what the slowest samples of SpeedyLoader's study take.
DEFAULT_MAX_DELAY = 32
_TOLD = ("count", "order_crc", "begun", "start")  # fields of an epoch in the header of a file


@dataclass(frozen=True)
class Relaxed:
    """Fill batches with the samples that are finished first.

    Args:
        max_delay: How many batches later than in strict order a sample may come.
    """

    max_delay: int = DEFAULT_MAX_DELAY

    def __post_init__(self) -> None:
        if isinstance(self.max_delay, bool) or not isinstance(self.max_delay, int) or self.max_delay < 0:
            raise ConfigError(f"max_delay: expected a number of batches, at least 0, got {self.max_delay!r}")


@dataclass(frozen=True)
class _Epoch:
    """One epoch in a log, or a part of one.

    Args:
        count: Number of samples.
        order_crc: Checksum of the rank's row in strict order.
        steps: Differences between neighbouring positions, minus one (mostly 0), compressed.
        begun: Number of samples in the global order that were used before the row starts.
        start: Number of samples in the row that were handed out before the first one here.
    """

    count: int
    order_crc: int
    steps: bytes
    begun: int = 0
    start: int = 0


@dataclass
class OrderLog:
    """The order in which samples were put into batches, epoch by epoch.

    It grows by a few bits per sample: only the differences from the strict order are stored.

    Args:
        dataset: Fingerprint of the data set.
        batch_size: Samples in a batch.
    """

    dataset: str
    batch_size: int
    _epochs: dict[int, _Epoch] = field(default_factory=dict)

    @property
    def epochs(self) -> tuple[int, ...]:
        """Which epochs are recorded."""
        return tuple(sorted(self._epochs))

    @property
    def size_bytes(self) -> int:
        """How many bytes of memory the orders take."""
        return sum(len(epoch.steps) for epoch in self._epochs.values())

    def record(self, epoch: int, order: Order, positions: NDArray[np.int64], *, begun: int = 0, start: int = 0) -> None:
        """Record an epoch, or the rest of one; a part recorded earlier is kept.

        Args:
            epoch: Number of the epoch.
            order: The rank's samples in strict order.
            positions: Positions in that order, in the sequence in which they were put into delivered batches; fewer
                than all if the epoch was stopped halfway.
            begun: Number of samples in the global order that were used before `order` starts.
            start: Number of samples in `order` that were handed out earlier.
        """
        known = self._epochs.get(epoch)
        if known is not None and not len(positions):
            return  # started again, and stopped before the first batch
        made = _Epoch(len(positions), _crc(order), _pack(positions), begun, start)
        joined = None if known is None else _joined(known, made)
        self._epochs[epoch] = joined or made

    def replay(self, epoch: int, order: Order) -> Order:
        """Return the samples of an epoch in their recorded order; the missing ones follow in strict order.

        Args:
            epoch: Number of the epoch.
            order: The rank's samples in strict order.
        """
        replayed: Order = order[self.left(epoch, order, Turns(Rank(), 0))]
        return replayed

    def turns(self, epoch: int, cursor: int, ranks: Rank) -> Turns:
        """Return a rank's progress in the row of an epoch, given a cursor, with nothing delivered out of turn."""
        begun = self._epoch(epoch).begun
        places, over = divmod(cursor - begun, ranks.size)
        if places < 0 or over:
            raise ConfigError(
                f"the log's epoch {epoch} starts after {begun:,} samples of it; load the state that the recorded run "
                "continued from"
            )
        return Turns(ranks, begun, places)

    def left(self, epoch: int, order: Order, turns: Turns) -> NDArray[np.int64]:
        """Return the remaining positions of an epoch in their recorded order; the missing ones follow in strict order.

        Args:
            epoch: Number of the epoch.
            order: The rank's samples in strict order.
            turns: The rank's progress.
        """
        kept = self._epoch(epoch)
        if kept.order_crc != _crc(order) or kept.begun != turns.begun:
            raise ConfigError(
                f"the log's epoch {epoch} was recorded with a different order of samples; use the data set, seed, "
                "shuffle, uneven and ranks of that run"
            )
        if turns.places < kept.start:
            raise ConfigError(
                f"the log has only the second part of epoch {epoch}: {kept.start:,} samples came before it. Replay "
                "both, Replay([first, second]), or load the state that this part started with"
            )
        recorded = _unpack(kept)[turns.places - kept.start :]
        if len(recorded) and int(recorded.max()) >= len(order):
            raise ConfigError(f"the log's epoch {epoch} names samples that do not exist; record it again")
        rest = np.zeros(len(order), bool)
        rest[turns.left(len(order))] = True
        if not rest[recorded].all():
            raise ConfigError(
                f"the state does not come from the run that recorded the log's epoch {epoch}: samples that it counts "
                "as "
                "used up come later in the log; load a state of that run, or none"
            )
        rest[recorded] = False
        return np.concatenate([recorded, np.flatnonzero(rest)])

    def joined(self, later: OrderLog) -> OrderLog:
        """Return a single log of this run and the run that continued from its state.

        Raises:
            ConfigError: The other run did not continue from this one: the data set or batch size differs, or the parts
                do not fit together.
        """
        if (later.dataset, later.batch_size) != (self.dataset, self.batch_size):
            raise ConfigError(
                f"two logs of different runs: data set {self.dataset} and batch_size={self.batch_size}, then "
                f"{later.dataset} and {later.batch_size}"
            )
        epochs = dict(self._epochs)
        for number, part in later._epochs.items():
            whole = part if number not in epochs else _joined(epochs[number], part)
            if whole is None:
                raise ConfigError(
                    f"the second log's epoch {number} does not continue where the first log ends: give both in the "
                    "order in which they were recorded, by the same rank of the same number of ranks"
                )
            epochs[number] = whole
        return OrderLog(self.dataset, self.batch_size, epochs)

    def _epoch(self, epoch: int) -> _Epoch:
        kept = self._epochs.get(epoch)
        if kept is None:
            known = ", ".join(map(str, self.epochs)) or "none"
            raise ConfigError(f"the log has no epoch {epoch}, only {known}; start at one of them with set_epoch")
        return kept

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the log to a file."""
        kept = [(number, self._epochs[number]) for number in self.epochs]
        epochs = [{"epoch": number, **{name: getattr(part, name) for name in _TOLD}} for number, part in kept]
        steps = [_steps(_unpack(part)) for _, part in kept]
        told = {"batch_size": self.batch_size, "epochs": epochs}
        header = Header(_FORMAT, _VERSION, {"dataset": self.dataset}, told)
        artifact.save(path, header, {"step": np.concatenate([np.empty(0, np.int32), *steps])})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> OrderLog:
        """Read a log from a file."""
        with artifact.load(path, format=_FORMAT, version=_VERSION) as file:
            file.require_columns({"step": pa.int32()})
            steps = np.empty(file.rows, np.int32)
            file.read("step", steps)
            told: Any = file.header.provenance
            try:
                log = cls(str(file.header.fingerprints["dataset"]), int(told["batch_size"]))
                start = 0
                for row in told["epochs"]:
                    told_epoch = {name: int(row[name]) for name in _TOLD}
                    stop = start + told_epoch["count"]
                    positions = np.cumsum(steps[start:stop].astype(np.int64) + 1) - 1
                    _check(positions, **told_epoch)
                    log._epochs[int(row["epoch"])] = _Epoch(steps=_pack(positions), **told_epoch)
                    start = stop
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise ArtifactError(f"{path}: not a complete order log ({error}); record it again.") from error
        return log


def _check(positions: NDArray[np.int64], *, count: int, begun: int, start: int, **_: int) -> None:
    if len(positions) != count or not _is_order(positions) or begun < 0 or start < 0:
        raise ValueError("the positions of an epoch are not a valid order")


def _is_order(positions: NDArray[np.int64]) -> bool:
    return len(np.unique(positions)) == len(positions) and (not len(positions) or int(positions.min()) >= 0)


def _joined(first: _Epoch, second: _Epoch) -> _Epoch | None:
    """Return two parts of an epoch as one; None if the second does not continue where the first ends."""
    taken = second.start - first.start  # the first run may have continued beyond the state that the second started with
    if (first.order_crc, first.begun) != (second.order_crc, second.begun) or not 0 < taken <= first.count:
        return None
    positions = np.concatenate([_unpack(first)[:taken], _unpack(second)])
    if not _is_order(positions):
        return None
    return _Epoch(len(positions), first.order_crc, _pack(positions), first.begun, first.start)


@dataclass(frozen=True)
class Replay:
    """Put samples into batches in the order of a log.

    Args:
        log: An `OrderLog`, or the path of one; or several, each from a run that resumed the previous one.
    """

    log: OrderLog | str | os.PathLike[str] | Sequence[OrderLog | str | os.PathLike[str]]

    def opened(self, dataset: str, batch_size: int) -> OrderLog:
        """Return the log, if it belongs to this data set and batch size."""
        several = self.log if isinstance(self.log, Sequence) and not isinstance(self.log, str) else [self.log]
        logs = [log if isinstance(log, OrderLog) else OrderLog.load(log) for log in several]
        if not logs:
            raise ConfigError("Replay: expected a log, or several, got none")
        log = functools.reduce(OrderLog.joined, logs)
        if log.dataset != dataset:
            raise ConfigError(f"the log belongs to data set {log.dataset}, but this one is {dataset}")
        if log.batch_size != batch_size:
            raise ConfigError(f"the log was recorded with batch_size={log.batch_size}, got {batch_size}")
        return log


def _crc(order: Order) -> int:
    return zlib.crc32(np.ascontiguousarray(order, "<i8").data)


def _steps(positions: NDArray[np.int64]) -> NDArray[np.int32]:
    return (np.diff(positions, prepend=-1) - 1).astype("<i4")


def _pack(positions: NDArray[np.int64]) -> bytes:
    packed: bytes = pa.Codec("zstd").compress(_steps(positions), asbytes=True)
    return packed


def _unpack(kept: _Epoch) -> NDArray[np.int64]:
    data = pa.Codec("zstd").decompress(kept.steps, decompressed_size=4 * kept.count) if kept.count else b""
    return np.cumsum(np.frombuffer(data, "<i4").astype(np.int64) + 1) - 1
