"""How samples may stand in batches: as the epoch's order says, as they are finished, or as they once were.

In relaxed order a batch holds whatever is finished first, so the sequence of batches depends on the machine's mood.
Each sample's tensor does not: it is a function of (seed, epoch, sample). So the order of samples is all that has to be
kept for a run to be repeated bit for bit, with any number of workers.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sophon import artifact
from sophon.artifact import Header
from sophon.errors import ArtifactError, ConfigError
from sophon.loader.order import Order

_FORMAT = "order-log"
_VERSION = 1
# 32 batches of 4 samples are two seconds at 15 ms each: twice what the slowest samples of SpeedyLoader's study take.
DEFAULT_MAX_DELAY = 32


@dataclass(frozen=True)
class Relaxed:
    """Fill batches with what is finished first.

    Args:
        max_delay: Batches that a sample may come later than by strict order.
    """

    max_delay: int = DEFAULT_MAX_DELAY

    def __post_init__(self) -> None:
        if isinstance(self.max_delay, bool) or not isinstance(self.max_delay, int) or self.max_delay < 0:
            raise ConfigError(f"max_delay: expected a number of batches, at least 0, got {self.max_delay!r}")


@dataclass(frozen=True)
class _Epoch:
    """One epoch in a log: steps from each position to the next, less one, which are mostly 0, compressed."""

    count: int
    order_crc: int
    steps: bytes


@dataclass
class OrderLog:
    """The order in which samples were put into batches, epoch by epoch.

    It grows by a few bits per sample: what is kept is where the order differs from the strict one.

    Args:
        dataset: Fingerprint of the data set.
        batch_size: Samples in a batch.
    """

    dataset: str
    batch_size: int
    _epochs: dict[int, _Epoch] = field(default_factory=dict)

    @property
    def epochs(self) -> tuple[int, ...]:
        """Which epochs there are."""
        return tuple(sorted(self._epochs))

    @property
    def size_bytes(self) -> int:
        """How many bytes of memory the orders take."""
        return sum(len(epoch.steps) for epoch in self._epochs.values())

    def record(self, epoch: int, order: Order, positions: NDArray[np.int64]) -> None:
        """Keep an epoch.

        Args:
            epoch: Which.
            order: Samples in strict order.
            positions: Positions in that order, in the sequence in which they were put into batches that were handed
                out; fewer than there are if the epoch was left half-way.
        """
        steps = (np.diff(positions, prepend=-1) - 1).astype("<i4")
        self._epochs[epoch] = _Epoch(len(positions), _crc(order), _codec().compress(steps, asbytes=True))

    def replay(self, epoch: int, order: Order) -> Order:
        """Return the samples of an epoch as they were in it; what it left out follows, in strict order."""
        kept = self._epochs.get(epoch)
        if kept is None:
            known = ", ".join(map(str, self.epochs)) or "none"
            raise ConfigError(f"the log has no epoch {epoch}, only {known}; start at one of them with set_epoch")
        if kept.order_crc != _crc(order):
            raise ConfigError(
                f"the log's epoch {epoch} was recorded in another order of samples; use the same data set, seed, "
                "shuffle, drop_last and ranks as then"
            )
        positions = self._positions(epoch)
        if kept.count and int(positions.max()) >= len(order):
            raise ConfigError(f"the log's epoch {epoch} names samples that there are not; record it again")
        rest = np.ones(len(order), bool)
        rest[positions] = False
        replayed: Order = order[np.concatenate([positions, np.flatnonzero(rest)])]
        return replayed

    def _positions(self, epoch: int) -> NDArray[np.int64]:
        kept = self._epochs[epoch]
        data = _codec().decompress(kept.steps, decompressed_size=4 * kept.count) if kept.count else b""
        return np.cumsum(np.frombuffer(data, "<i4").astype(np.int64) + 1) - 1

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the log to a file."""
        epochs = [
            {"epoch": number, "count": self._epochs[number].count, "order_crc": self._epochs[number].order_crc}
            for number in self.epochs
        ]
        positions = [self._positions(number) for number in self.epochs]
        steps = [(np.diff(part, prepend=-1) - 1).astype(np.int32) for part in positions]
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
                    stop = start + int(row["count"])
                    part = steps[start:stop].astype("<i4")
                    _check(part, int(row["count"]))
                    compressed = _codec().compress(part, asbytes=True)
                    log._epochs[int(row["epoch"])] = _Epoch(len(part), int(row["order_crc"]), compressed)
                    start = stop
            except (KeyError, TypeError, ValueError) as error:
                raise ArtifactError(f"{path}: not a whole log of an order ({error}); record it again.") from error
        return log


def _check(steps: NDArray[Any], count: int) -> None:
    positions = np.cumsum(steps.astype(np.int64) + 1) - 1
    if len(steps) != count or len(np.unique(positions)) != count or (count and positions.min() < 0):
        raise ValueError("an epoch is not an order")


@dataclass(frozen=True)
class Replay:
    """Put samples into batches in the order of a log.

    Args:
        log: An `OrderLog`, or the path of one.
    """

    log: OrderLog | str | os.PathLike[str]

    def opened(self, dataset: str, batch_size: int) -> OrderLog:
        """Return the log, if it belongs to this data set and batch size."""
        log = self.log if isinstance(self.log, OrderLog) else OrderLog.load(self.log)
        if log.dataset != dataset:
            raise ConfigError(f"the log belongs to data set {log.dataset}, but this one is {dataset}")
        if log.batch_size != batch_size:
            raise ConfigError(f"the log was recorded with batch_size={log.batch_size}, got {batch_size}")
        return log


def _crc(order: Order) -> int:
    return zlib.crc32(np.ascontiguousarray(order, "<i8").data)


def _codec() -> pa.Codec:
    return pa.Codec("zstd")
