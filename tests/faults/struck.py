"""Two epochs of a loader during which something happens."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import sophon
from sophon.loader.sources.assignment import OffloadWarning
from sophon.loader.sources.census import AbsentWarning
from sophon.loader.sources.sources import FallbackWarning
from tests.support.marks import slow
from tests.support.servers import RECIPE, digest
from tests.support.settings import grouped
from tests.support.waiting import HANG_S

COUNT, BATCH, SEED = 60, 5, 5
SLOWLY = ("--limit", "5mbit")  # so that an epoch lasts about a second and a fault can strike in the middle of it
FAR_S = 10 * HANG_S  # a deadline that nobody comes to, however busy the machine is
POLICIES = (*slow("none"), "2:webp")
MOMENTS = ("opening", "mid-stream", *slow("first batch", "between epochs"))


class Struck:
    """Two epochs of a loader during which something happens.

    Args:
        data: Address of the data set, or several.
        fault: What happens; called in a thread of its own, while the loader goes on.
        moment: "opening", "first batch", "mid-stream" or "between epochs".
        settings: Of the loader.
    """

    def __init__(self, data: Any, fault: Callable[[], Any], moment: str, **settings: Any) -> None:
        self._moment = moment
        self.is_over = threading.Event()  # both epochs are, and a fault that goes on has to end
        self._striker = threading.Thread(target=fault)
        if moment == "opening":
            self._striker.start()
        arguments = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "num_workers": 2, "buffer_bytes": 1 << 18}
        arguments["deadline_s"] = FAR_S
        self.loader = sophon.DataLoader(data, RECIPE, **grouped(**arguments | settings))

    def batches(self) -> Iterator[Any]:
        try:
            for epoch in range(2):
                for number, batch in enumerate(self.loader):
                    if (self._moment, epoch, number) in (("first batch", 0, 0), ("mid-stream", 0, 4)):
                        self._striker.start()
                    yield batch
                if (self._moment, epoch) == ("between epochs", 0):
                    self._striker.start()
        finally:
            self.is_over.set()
        self.join()

    def join(self) -> None:
        """Wait until what happens has happened."""
        self._striker.join()

    def digest(self) -> str:
        return digest(self.batches())


@contextlib.contextmanager
def warnings_allowed() -> Iterator[None]:
    """Warnings of smaller cuts, absent nodes and a fallback are no errors here: they are expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OffloadWarning)
        warnings.simplefilter("ignore", FallbackWarning)
        warnings.simplefilter("ignore", AbsentWarning)
        yield
