"""What users tell a loader: how it is checked, and what is chosen where they say nothing."""

from __future__ import annotations

import math
import warnings
from typing import Any

from sophon.errors import ConfigError
from sophon.loader.machine.tuner import Setting, Tuner
from sophon.loader.order.log import Relaxed, Replay
from sophon.loader.torch_import import torch
from sophon.process.cores import cores_here

_WORKERS = ("threads", "processes")
_MOST_REQUESTS = 32  # a storage node answers each with a stream and a few samples of lookahead of its own
_SHALLOW = 8  # an eighth of the buffer's bytes is read ahead until that proves too little


def at_least(name: str, value: Any, least: int) -> None:
    """Raise unless a value is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}: expected an integer of at least {least}, got {value!r}")


def workers_kind(told: str | None, number: int | str, own_code: str) -> str:
    """Return whether workers are threads or processes; raise if that kind or number cannot be.

    Args:
        told: "threads" or "processes", as the user said; None to choose.
        number: How many.
        own_code: What the loader runs of the user's own, in words; "" for nothing.
    """
    if told is not None and told not in _WORKERS:
        raise ConfigError(f"workers: expected threads or processes, got {told!r}")
    if number != "auto":
        at_least("num_workers", number, 0)
    if told == "threads" and own_code and number != 0:
        raise ConfigError(
            f"workers='threads': {own_code} may draw from the global generators, which belong to the training loop, "
            "and holds Python's lock; leave out workers=, and worker processes run it, or use num_workers=0"
        )
    return told or ("processes" if own_code else "threads")


def check_hedge(hedge: Any) -> bool | float:
    """Return after how long a request is made a second time; raise if the setting makes no sense."""
    if hedge is False or (isinstance(hedge, bool | int | float) and hedge > 0 and math.isfinite(hedge)):
        return bool(hedge) if isinstance(hedge, bool) else float(hedge)
    raise ConfigError(f"hedge: expected True, False or seconds above 0, got {hedge!r}")


def check_not_told(told: dict[str, bool]) -> None:
    """Raise if a loader was told what its data set has been told already."""
    if any(told.values()):
        names = ", ".join(name for name, is_told in told.items() if is_told)
        raise ConfigError(f"a RemoteDataset has its own {names}; tell it, not the loader")


def bound_ahead(buffer_bytes: int, prefetch_factor: Any, workers: int, batch_size: int, result_bytes: int) -> int:
    """Return how many bytes may be held: `buffer_bytes`, or `prefetch_factor` batches per worker if that is less."""
    if prefetch_factor is None:
        return buffer_bytes
    at_least("prefetch_factor", prefetch_factor, 1)
    return min(buffer_bytes, int(prefetch_factor) * max(workers, 1) * batch_size * result_bytes)


def tuner_for(kind: str, max_requests: int | None, requests: int, buffer_bytes: int) -> Tuner:
    """Return what finds the setting of a loader.

    Args:
        kind: "threads" or "processes".
        max_requests: As the user said, a number that stays; None to find one.
        requests: Number of requests to begin with.
        buffer_bytes: Bound on bytes ahead.
    """
    cores = cores_here()
    start = Setting(cores, requests, max(buffer_bytes // _SHALLOW, 1))
    # Threads that wait rather than compute may be more than there are cores; processes are all started beforehand.
    most = 4 * cores if kind == "threads" else cores
    return Tuner(start, Setting(most, max_requests or _MOST_REQUESTS, buffer_bytes), cores)


def relaxed_order(order: Any) -> Relaxed | None:
    """Return how far samples may leave their order; None if they may not."""
    if isinstance(order, Relaxed):
        return order
    if order == "relaxed":
        return Relaxed()
    if order != "strict" and not isinstance(order, Replay):
        raise ConfigError(f"order: expected 'strict', 'relaxed', Relaxed(max_delay) or Replay(log), got {order!r}")
    return None


def can_pin(wanted: bool, output: str) -> bool:
    """Return whether batches are to be copied into pinned memory."""
    if wanted and output == "numpy":
        raise ConfigError('pin_memory: there is pinned memory for torch tensors only; use output="torch"')
    if wanted and not torch.accelerator.is_available():
        warnings.warn("pin_memory is set but there is no accelerator; batches are not pinned", stacklevel=3)
        return False
    return wanted
