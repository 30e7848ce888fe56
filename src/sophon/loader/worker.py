"""What runs in a worker process: samples, batches, and a report of what they took.

Concurrency: each worker process has a copy of its own. Its counts and its bad samples travel with its batches, so that
the trainer's are whole.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from sophon.loader.batch import EMPTY, Collate
from sophon.loader.dataset import RemoteDataset
from sophon.loader.stats import Stats
from sophon.loader.torch_import import Dataset


class WorkerSide(Dataset[Any]):
    """The data set and the collating of torch's own DataLoader, in one.

    Args:
        dataset: Where samples come from.
        collate: The user's own function, if any.
    """

    def __init__(self, dataset: RemoteDataset, collate: Collate | None) -> None:
        self._dataset = dataset
        self._collate = collate

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int | tuple[int, int]) -> Any:
        return self._dataset[index]

    def __getitems__(self, indices: Sequence[int | tuple[int, int]]) -> list[Any]:
        """Return several samples; none, if all are bad and skipped."""
        return self._dataset.items(indices)

    def collate(self, items: list[Any]) -> tuple[Any, dict[str, Any]]:
        """Return a batch, or None for nothing, and what was counted since the one before."""
        dataset, start_s = self._dataset, time.monotonic()
        batch = (self._collate or dataset.collate)(items) if items else None
        dataset.stats.add(collate_s=time.monotonic() - start_s)
        report = {"stats": dataset.stats.to_dict(), "bad": dataset.bad_samples.take_news(), "empty": not items}
        dataset.stats = Stats()
        return batch, report


def opened(sent: tuple[Any, dict[str, Any]]) -> tuple[Any, dict[str, Any]]:
    """Return the batch that a worker has sent, or EMPTY, and its report."""
    batch, report = sent
    return (EMPTY if report["empty"] else batch), report


_running: set[Any] = set()  # iterations of torch's DataLoader whose workers are to be ended by us


@contextlib.contextmanager
def ended_with(batches: Any) -> Iterator[Any]:
    """End the worker processes of an iteration of torch's DataLoader with the block, however that ends.

    Torch does it when the iterator is freed. If it is the garbage collector that frees it, as after an error in a
    worker or with objects that know each other, the queue that tells workers to end is closed first, and torch waits
    for each in vain, for five seconds. So the iteration is kept until it has been ended.
    """
    _running.add(batches)
    try:
        yield batches
    finally:
        _running.discard(batches)
        shut_down = getattr(batches, "_shutdown_workers", None)  # not promised by torch; without it, it takes longer
        if shut_down is not None:
            shut_down()
