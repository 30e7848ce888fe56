"""The trainer process for sophon: plans as it does for users."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from sophon.bench.cluster.peers.counting import count_epoch
from sophon.bench.ops import RECIPE
from sophon.bench.rig.commands import answer
from sophon.loader.loader import DataLoader
from sophon.loader.options import Planning


class Commands:
    """The commands of the process."""

    def __init__(self) -> None:
        self._loader: DataLoader | None = None

    def hello(self) -> dict[str, str]:
        """Return the versions of packages."""
        torch.set_num_threads(1)
        return {"torch": torch.__version__}

    def open(self, urls: list[str], batch_size: int) -> None:
        """Open a data set on nodes that each hold all of it."""
        self._loader = DataLoader(
            urls, RECIPE, batch_size=batch_size, shuffle=True, num_workers=2, policy=Planning("optimal", profile=False)
        )

    def epoch(self, way: str, epoch: int, patience_s: float) -> dict[str, Any]:
        """Run an epoch."""
        assert self._loader is not None
        assert way == "planned"
        self._loader.set_epoch(epoch)
        return count_epoch(self._batches(self._loader), len(self._loader.dataset), patience_s)

    def _batches(self, loader: DataLoader) -> Iterator[list[int]]:
        for _, labels in loader:
            yield labels.tolist()  # each photo is its own class


if __name__ == "__main__":
    answer(Commands())
