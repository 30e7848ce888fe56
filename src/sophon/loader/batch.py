"""Batches in the making: samples are written into their place as they are finished, in any order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from sophon.codec.wire import Reply
from sophon.loader.dataset import RemoteDataset
from sophon.pipeline import Key, Tensor, Value

Collate = Callable[[list[Any]], Any]
EMPTY = object()  # stands for a batch of which nothing is left, since all its samples are bad and skipped


class Batch:
    """One batch being filled.

    Where finished samples are tensors of one size and nobody wants them one by one, they are written straight into the
    batch: the copy that collating would make is saved.

    Args:
        dataset: Whose samples.
        size: How many.
        collate: The user's own function, if any.
    """

    def __init__(self, dataset: RemoteDataset, size: int, collate: Collate | None) -> None:
        self._dataset = dataset
        self._collate = collate
        self._values: list[Value] = [None] * size
        self._targets: list[Any] = [None] * size
        self._replies: list[Reply] = [Reply(0)] * size
        self._keys: list[Key | None] = [None] * size
        self._errors: dict[int, Exception] = {}
        self._room: Tensor | None = None
        self._lock = threading.Lock()

    def place(self, slot: int) -> Tensor | None:
        """Return where the sample of a slot may be written, if that is possible."""
        known = self._dataset.room
        if self._collate is not None or known is None:
            return None
        with self._lock:
            if self._room is None:
                shape, dtype = known
                self._room = np.empty((len(self._values), *shape), dtype)
            place: Tensor = self._room[slot]
        return place

    def put(self, slot: int, value: Value, target: Any, reply: Reply, key: Key) -> None:
        """Put a finished sample into its slot."""
        self._keys[slot] = key
        place = self.place(slot)
        if place is not None:
            # A result that was written into its place is a view of the batch already.
            if not (isinstance(value, np.ndarray) and value.base is self._room):
                place[...] = value
            value = None
        self._values[slot] = value
        self._targets[slot] = target
        self._replies[slot] = reply

    def fail(self, slot: int, key: Key, error: Exception) -> None:
        """Note that the sample of a slot cannot be had."""
        self._keys[slot] = key
        self._errors[slot] = error

    def finish(self) -> Any:
        """Return the batch as users see it, or EMPTY; raise the error of its first bad sample if that is the policy.

        Runs in the consumer's thread, and so do the user's own steps and the fetching of substitutes.
        """
        self._call()
        kept = self._mend()
        if not kept:
            return EMPTY
        dataset, whole = self._dataset, len(kept) == len(self._values)
        targets = [self._targets[slot] for slot in kept]
        replies = [self._replies[slot] for slot in kept]
        if self._room is None:
            values = [dataset.as_output(self._values[slot]) for slot in kept]
            rows = zip(values, targets, replies, strict=True)
            return (self._collate or dataset.collate)([dataset.item(*row) for row in rows])
        parts: list[Any] = [dataset.as_output(self._room if whole else self._room[kept])]
        if dataset.opened.has_labels:
            parts.append(self._collate_targets(targets))
        if dataset.columns:
            parts.append(dataset.collate([reply.columns for reply in replies]))
        return parts if len(parts) > 1 else parts[0]

    def _call(self) -> None:
        if not self._dataset.has_calls:
            return
        for slot, key in enumerate(self._keys):
            if key is None or slot in self._errors:
                continue
            try:
                self._values[slot] = self._dataset.run_calls(self._values[slot], key)
            except Exception as error:  # noqa: BLE001 - the user's own code may raise anything
                self._errors[slot] = error

    def _mend(self) -> list[int]:
        """Put substitutes in place of bad samples; return the slots that hold something."""
        missing = set()
        for slot in sorted(self._errors):
            key = self._keys[slot]
            assert key is not None
            found = self._dataset.mend(key.epoch, key.sample, self._errors[slot])
            if found is None:
                missing.add(slot)
            else:
                self.put(slot, *found, key)
        return [slot for slot in range(len(self._values)) if slot not in missing]

    def _collate_targets(self, targets: list[Any]) -> Any:
        if self._dataset.output == "torch" and all(type(target) is int for target in targets):
            return self._dataset.as_output(np.array(targets, np.int64))
        return self._dataset.collate(targets)
