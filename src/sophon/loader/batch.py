"""Batches in the making: samples are written into their place as they are finished, in any order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from sophon.codec.wire import Reply
from sophon.loader.dataset import RemoteDataset, torch_value
from sophon.pipeline import Key, Tensor, Value

Collate = Callable[[list[Any]], Any]


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
        self._replies: list[Reply | None] = [None] * size
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

    def fail(self, slot: int, error: Exception) -> None:
        """Note that the sample of a slot cannot be had."""
        self._errors[slot] = error

    def finish(self) -> Any:
        """Return the batch as users see it; raise the error of its first bad sample."""
        if self._errors:
            raise self._errors[min(self._errors)]
        dataset = self._dataset
        if self._room is None:
            values = [torch_value(self._called(slot)) for slot in range(len(self._values))]
            rows = zip(values, self._targets, self._replies, strict=True)
            items = [dataset.item(value, target, reply or Reply(0)) for value, target, reply in rows]
            return (self._collate or default_collate)(items)
        parts: list[Any] = [torch.from_numpy(self._room)]
        if dataset.opened.has_labels:
            parts.append(_targets(self._targets))
        if dataset.columns:
            parts.append(default_collate([reply.columns for reply in self._replies if reply is not None]))
        return parts if len(parts) > 1 else parts[0]

    def _called(self, slot: int) -> Value:
        """Return the value of a slot after the user's own steps, which run here, in the consumer's thread."""
        key = self._keys[slot]
        if not self._dataset.has_calls or key is None:
            return self._values[slot]
        return self._dataset.run_calls(self._values[slot], key)


def _targets(targets: list[Any]) -> Any:
    if all(type(target) is int for target in targets):
        return torch.tensor(targets, dtype=torch.int64)
    return default_collate(targets)
