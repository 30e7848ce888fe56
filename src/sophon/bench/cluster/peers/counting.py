"""Counts an epoch of any loader: which samples arrived, how often, and the longest wait.

Runs in the trainer process of each loader. Imports neither torch nor NumPy, since some loaders bring their own.
Concurrency: a thread watches for an epoch that makes no progress, reports it and ends the process.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sophon.bench.rig.commands import say

_LOOK_S = 0.2


def count_epoch(batches: Iterable[Sequence[int]], samples: int, patience_s: float) -> dict[str, Any]:
    """Take all batches and return what arrived; a failure is part of the result.

    Args:
        batches: For each batch, the numbers of its samples.
        samples: How many samples there are.
        patience_s: After this long without a batch, the epoch is reported as failed and the process ends.
    """
    epoch = _Epoch(samples)
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(epoch, ended, patience_s), daemon=True)
    watch.start()
    error = ""
    try:
        for numbers in batches:
            epoch.take(numbers)
    except Exception as found:  # noqa: BLE001 - any error of any loader is what was asked about
        error = f"{type(found).__name__}: {found}".strip().splitlines()[0][:300]
    ended.set()
    watch.join()
    return epoch.result(error)


class _Epoch:
    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._seen: Counter[int] = Counter()
        self._start_s = self.last_s = time.monotonic()
        self._longest_s = 0.0

    def take(self, numbers: Sequence[int]) -> None:
        now_s = time.monotonic()
        self._longest_s, self.last_s = max(self._longest_s, now_s - self.last_s), now_s
        self._seen.update(numbers)
        say({"progress": [self._seen.total(), self._samples]})

    def result(self, error: str) -> dict[str, Any]:
        now_s = time.monotonic()
        return {
            "epoch_s": now_s - self._start_s,
            "samples": self._seen.total(),
            "lost": sum(number not in self._seen for number in range(self._samples)),
            "repeated": self._seen.total() - len(self._seen),
            "longest_wait_s": max(self._longest_s, now_s - self.last_s),
            "error": error,
        }


def _watch(epoch: _Epoch, ended: threading.Event, patience_s: float) -> None:
    while not ended.wait(_LOOK_S):
        if time.monotonic() - epoch.last_s > patience_s:
            say({"result": epoch.result(f"nothing came for {patience_s:g} s")})
            os._exit(1)
