"""What finishes samples and makes batches: this process itself, or worker processes (`workers`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from sophon.link.wire import Reply
from sophon.loader.epoch.batch import Batch, Memory, OwnMemory, Place
from sophon.loader.epoch.collate import Collate, collate_seeded
from sophon.loader.epoch.finishing import Finishing, Made
from sophon.pipeline import Key


class Finisher(ABC):
    """Finishes one sample or batch at a time; may be used by several threads, which take turns where they must."""

    @abstractmethod
    def make(self, reply: Reply, key: Key, place: Place | None, wants_trace: bool) -> Made:
        """Finish a sample; see `Finishing.make`.

        Args:
            reply: The reply for the sample.
            key: Identifies the sample and the epoch.
            place: The sample's place in the batch, if known.
            wants_trace: Whether to record the cost of each op.

        Raises:
            WorkerError: The process that worked on the sample died.
        """

    @abstractmethod
    def batch(self, batch: Batch, key: Key) -> Any:
        """Return the batch that the user gets, made from its samples; or EMPTY.

        Args:
            batch: The samples.
            key: Seed for the user's own collating; see `collate_seeded`.

        Raises:
            WorkerError: The process that worked on the batch died.
            Exception: Whatever the user's own function raises.
        """


class Finishers(ABC):
    """All finishers of an epoch."""

    memory: Memory
    writes_alone: bool
    """Whether samples that are passed one by one to the user's own function may share one array."""

    @abstractmethod
    def __getitem__(self, number: int) -> Finisher: ...

    def stop(self) -> None:  # noqa: B027 - nothing runs elsewhere
        """Release threads waiting for a worker process, unless the processes are kept for the next epoch."""

    def close(self, wait: bool = True) -> None:  # noqa: B027
        """End the worker processes.

        Args:
            wait: Whether to wait until they have ended.
        """


class Here(Finisher, Finishers):
    """Finishes in this process, in the calling thread.

    Args:
        finishing: How samples are finished.
        collate: The user's own function that makes batches, if any.
        memory: Memory of the batches.
    """

    writes_alone = False

    def __init__(self, finishing: Finishing, collate: Collate | None, memory: OwnMemory | None = None) -> None:
        self.memory = memory or OwnMemory()
        self._finishing = finishing
        self._collate = collate

    def __getitem__(self, number: int) -> Finisher:
        return self

    def make(self, reply: Reply, key: Key, place: Place | None, wants_trace: bool) -> Made:
        """Finish a sample in this process."""
        return self._finishing.make(reply, key, None if place is None else place.array, wants_trace)

    def batch(self, batch: Batch, key: Key) -> Any:
        """Make a batch in this process."""
        if self._collate is None or not batch.kept:
            return batch.assembled()
        return collate_seeded(self._collate, [self._finishing.item(made) for made, _ in batch.rows()], key)
