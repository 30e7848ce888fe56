"""A training process that ends in the middle of an epoch, while a worker holds the engine's lock."""

from __future__ import annotations

import threading
import time
from typing import Any

import sophon
from sophon.loader.costs import Costs
from tests.support.servers import RECIPE

_LONG_S = 0.1  # a thread that holds a lock may have to wait so long for Python's own, on a busy machine


def _hold_the_lock() -> None:
    """Wait until a worker holds the lock, and will for a while."""
    holds = threading.Event()

    def saw(*_: Any) -> None:  # called under the engine's lock
        holds.set()
        time.sleep(_LONG_S)

    Costs.saw = saw  # type: ignore[method-assign]
    holds.wait(10)


def _draw(loader: sophon.DataLoader) -> None:
    for _ in loader:
        pass


def main(path: str, how: str) -> Any:
    """Begin an epoch; return what is to be kept in a script's own names, which the interpreter frees when it ends."""
    loader = sophon.DataLoader(path, RECIPE, 4, num_workers=2)
    batches = iter(loader)
    if how == "kept":
        next(batches)
    else:
        threading.Thread(target=_draw, args=(loader,), daemon=True).start()
    _hold_the_lock()
    return batches
