"""What users tell a loader: what is checked, what is found out where they say nothing."""

from __future__ import annotations

import math
import os
import warnings
from typing import Any

from sophon.errors import ConfigError
from sophon.loader.order_log import Relaxed, Replay
from sophon.loader.torch_import import torch
from sophon.loader.tuner import Setting, Tuner

_WORKERS = ("threads", "processes")
_MOST_REQUESTS = 32  # a storage node answers each with a stream and a few samples of lookahead of its own
_SHALLOW = 8  # of the buffer's bytes, an eighth is read ahead until that proves too little


def at_least(name: str, value: Any, least: int) -> None:
    """Raise unless a value is an integer of at least so much."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}: expected an integer of at least {least}, got {value!r}")


def check_workers(workers: str, number: int | str, order: Any) -> None:
    """Raise unless there can be so many workers of that kind, in that order."""
    if workers not in _WORKERS:
        raise ConfigError(f"workers: expected threads or processes, got {workers!r}")
    if number != "auto":
        at_least("num_workers", number, 0)
    if workers == "processes" and number != 0 and (order != "strict" or number == "auto"):
        raise ConfigError("worker processes keep strict order and a fixed number; use workers='threads'")


def check_hedge(hedge: Any, workers: str, number: int | str) -> None:
    """Raise unless late requests can be made a second time."""
    if hedge is False or (isinstance(hedge, bool | int | float) and hedge > 0 and math.isfinite(hedge)):
        if hedge and (workers != "threads" or number == 0):
            raise ConfigError("hedge: to ask twice needs threads; use workers='threads' and num_workers of at least 1")
        return
    raise ConfigError(f"hedge: expected True, False or seconds above 0, got {hedge!r}")


def check_not_told(told: dict[str, bool]) -> None:
    """Raise if a loader was told what its data set has been told already."""
    if any(told.values()):
        names = ", ".join(name for name, is_told in told.items() if is_told)
        raise ConfigError(f"a RemoteDataset has its own {names}; tell it, not the loader")


def cores_here() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def tuner_for(max_requests: int | None, requests: int, buffer_bytes: int) -> Tuner:
    """Return who finds the setting of a loader.

    Args:
        max_requests: As the user told, a number that stays; None to find it.
        requests: To begin with.
        buffer_bytes: Bound on bytes ahead.
    """
    cores = cores_here()
    start = Setting(cores, requests, max(buffer_bytes // _SHALLOW, 1))
    # Threads that wait rather than compute may be more than there are cores.
    return Tuner(start, Setting(4 * cores, max_requests or _MOST_REQUESTS, buffer_bytes), cores)


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
