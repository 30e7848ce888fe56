"""Batches of NumPy arrays, of the same structure that torch's own collating gives; and batches in pinned memory."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Number
from typing import Any

import numpy as np

OUTPUTS = ("torch", "numpy")


def numpy_collate(items: list[Any]) -> Any:
    """Return a batch of samples: arrays are stacked, numbers become an array, texts and all else stay lists."""
    first = items[0]
    if isinstance(first, np.ndarray):
        return np.stack(items)
    if isinstance(first, Number):  # int64 and float64 on every machine, as torch has them
        return np.array(items)
    if isinstance(first, Mapping):
        return {name: numpy_collate([item[name] for item in items]) for name in first}
    if isinstance(first, tuple | list):
        return [numpy_collate(list(part)) for part in zip(*items, strict=True)]
    return items


def pinned(batch: Any) -> Any:
    """Return a batch whose tensors lie in pinned memory, which an accelerator copies from without the CPU."""
    if hasattr(batch, "pin_memory"):  # a tensor, or a batch of the user's own kind
        return batch.pin_memory()
    if isinstance(batch, Mapping):
        return {name: pinned(part) for name, part in batch.items()}
    if hasattr(batch, "_fields"):  # a named tuple
        return type(batch)(*map(pinned, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(pinned(part) for part in batch)
    return batch
