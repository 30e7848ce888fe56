"""A training process that ends in the middle of an epoch, while a worker holds the engine's lock."""

from __future__ import annotations

import threading
import time
from typing import Any

import sophon
from sophon.loader.epoch.costs import Costs
from tests.support.servers import RECIPE
from tests.support.settings import grouped
from tests.support.waiting import HANG_S

_LONG_S = 0.1  # a thread that holds a lock may have to wait so long for Python's own, on a busy machine


def _hold_the_lock() -> None:
    """Wait until a worker holds the lock, and will for a while."""
    holds = threading.Event()

    def saw(*_: Any) -> None:  # called under the engine's lock
        holds.set()
        time.sleep(_LONG_S)

    Costs.saw = saw  # type: ignore[method-assign]
    assert holds.wait(HANG_S)


def _draw(loader: sophon.DataLoader) -> None:
    for _ in loader:
        pass


_SETTINGS: dict[str, dict[str, Any]] = {
    "threads": {},
    "processes": {"kind": "processes"},
    "persistent": {"kind": "processes", "persistent_workers": True},
}


def main(path: str, how: str, kind: str) -> Any:
    """Begin an epoch; return what is to be kept in a script's own names, which the interpreter frees when it ends."""
    loader = sophon.DataLoader(path, RECIPE, **grouped(batch_size=4, num_workers=2, **_SETTINGS[kind]))
    batches = iter(loader)
    if how == "kept":
        next(batches)
    else:
        threading.Thread(target=_draw, args=(loader,), daemon=True).start()
    _hold_the_lock()
    return batches
