"""Making batches: with the user's own function under a seed, as NumPy arrays, in pinned memory.

Transforms of whole batches, such as torchvision's CutMix and MixUp, run in the user's `collate_fn` and draw from the
global generators. These are seeded from (seed, epoch, position of the batch's first sample in the order of the whole
epoch), so a batch is the same whichever worker makes it, whatever else draws, and wherever the epoch was started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Number
from typing import Any

import numpy as np

from sophon.errors import ConfigError
from sophon.loader.torch_import import torch
from sophon.pipeline.rng import Key, Rng
from sophon.pipeline.seeding import seeded

Collate = Callable[[list[Any]], Any]

OUTPUTS = ("torch", "numpy")
_COLLATE_POSITION = 1 << 32  # no pipeline has this many ops, so collating shares no random word with any op


def collate_seeded(collate: Collate, items: list[Any], key: Key) -> Any:
    """Return the batch made by the user's own function; the global generators are restored afterwards.

    Args:
        collate: The user's function.
        items: The samples.
        key: Seed, epoch, and the position of the batch's first sample in the order of the whole epoch.
    """
    with seeded(Rng(key, _COLLATE_POSITION).word()):
        return collate(items)


def numpy_collate(items: list[Any]) -> Any:
    """Return a batch of samples: arrays are stacked, numbers become an array, everything else stays a list."""
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


def as_arrays(value: Any) -> Any:
    """Return the result of the user's own steps with every torch tensor replaced by an array."""
    if torch is not None and isinstance(value, torch.Tensor):
        try:
            return value.detach().cpu().contiguous().numpy()
        except TypeError as error:
            raise ConfigError(
                f"NumPy has no {value.dtype} arrays; make the last step return float32, or use output='torch'"
            ) from error
    if isinstance(value, Mapping):
        return {name: as_arrays(part) for name, part in value.items()}
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(as_arrays(part) for part in value)
    return value


def pinning() -> Callable[[Any], Any]:
    """Return a function that pins batches for this thread's accelerator, whichever thread runs that function."""
    device = torch.accelerator.current_device_index()

    def pin(batch: Any) -> Any:
        # Each thread has its own current accelerator, initially number 0, on which it would open a context.
        torch.accelerator.set_device_index(device)
        return pinned(batch)

    return pin


def pinned(batch: Any) -> Any:
    """Return a batch with its tensors in pinned memory, from which an accelerator copies without the CPU."""
    if hasattr(batch, "pin_memory"):  # a tensor, or a batch of the user's own kind
        return batch.pin_memory()
    if isinstance(batch, Mapping):
        return {name: pinned(part) for name, part in batch.items()}
    if hasattr(batch, "_fields"):  # a named tuple
        return type(batch)(*map(pinned, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(pinned(part) for part in batch)
    return batch
