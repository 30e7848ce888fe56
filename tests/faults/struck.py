"""Two epochs of a loader during which something happens."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import sophon
from sophon.loader.cuts import OffloadWarning
from sophon.loader.sources import FallbackWarning
from tests.support.servers import RECIPE, digest

COUNT, BATCH, SEED = 60, 5, 5
SLOWLY = ("--limit", "5mbit")  # so that an epoch lasts about a second and a fault can strike in the middle of it
POLICIES = (pytest.param("none", marks=pytest.mark.slow), "2:webp")
MOMENTS = ("opening", "first batch", "mid-stream", "between epochs")


class Struck:
    """Two epochs of a loader during which something happens.

    Args:
        data: Address of the data set, or several.
        fault: What happens; called in a thread of its own, while the loader goes on.
        moment: One of MOMENTS.
        settings: Of the loader.
    """

    def __init__(self, data: Any, fault: Callable[[], Any], moment: str, **settings: Any) -> None:
        self._moment = moment
        self._striker = threading.Thread(target=fault)
        if moment == "opening":
            self._striker.start()
        arguments = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "num_workers": 2, "buffer_bytes": 1 << 18}
        self.loader = sophon.DataLoader(data, RECIPE, **(arguments | settings))

    def batches(self) -> Iterator[Any]:
        for epoch in range(2):
            for number, batch in enumerate(self.loader):
                if (self._moment, epoch, number) in (("first batch", 0, 0), ("mid-stream", 0, 4)):
                    self._striker.start()
                yield batch
            if (self._moment, epoch) == ("between epochs", 0):
                self._striker.start()
        self.join()

    def join(self) -> None:
        """Wait until what happens has happened."""
        self._striker.join()

    def digest(self) -> str:
        return digest(self.batches())


@contextlib.contextmanager
def warnings_allowed() -> Iterator[None]:
    """Warnings of smaller cuts and of a fallback are no errors here: they are expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OffloadWarning)
        warnings.simplefilter("ignore", FallbackWarning)
        yield
