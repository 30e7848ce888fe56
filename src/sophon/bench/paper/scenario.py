"""The parameters of an evaluation, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from sophon.bench.rig.testbed import SHAPES
from sophon.errors import ConfigError

POLICY_NAMES = ("none", "all", "fastflow", "resize", "sophon", "optimal")
FIGURE_NAMES = ("1a", "1b", "1c", "1d", "3", "4")
LIKES = ("openimages", "imagenet")
# Figure 4 of the paper has 0 … 5 cores on a link of 500 Mbit/s; these are as scarce relative to a link of 40 Mbit/s.
FIGURE_4_CORES = (0.0, 0.1, 0.2, 0.4, 1.0)


@dataclass(frozen=True)
class Scenario:
    """One evaluation.

    Args:
        data: Folder of images, or one with folders `openimages` and `imagenet`; None for synthetic photos.
        like: Data set of the paper to compare with and to imitate.
        count: Samples in an epoch; None for as many as make epochs long enough to measure.
        link_bytes_per_s: Rate of the link.
        storage_cores: Number of cores near storage; at most one, since the rig gives the server one core.
        consumer_samples_per_s: Speed of the stand-in accelerator; None for a small network on the trainer's CPU.
        repeats: Timed epochs of each policy.
        figures: Figures of the paper to reproduce as well.
        policies: Policies to run; `none` must be among them.
        shape: How the link is shaped: auto, tbf or server.
        batch_size: Samples in a batch.
        workers: Threads of the loader that finish samples.
        seed: Seed of order and boxes.
        epoch: Epoch to run, always the same one, so that boxes are equal.
        automatic: Whether to also run a loader that measures and plans on its own.
        keep: Folder for profiles and plans; None to discard them.
    """

    data: Path | None = None
    like: str = "openimages"
    count: int | None = None
    link_bytes_per_s: float = 5e6
    storage_cores: float = 1.0
    consumer_samples_per_s: float | None = 2000.0
    repeats: int = 3
    figures: tuple[str, ...] = ()
    policies: tuple[str, ...] = POLICY_NAMES
    shape: str = "auto"
    batch_size: int = 32
    workers: int = 1
    seed: int = 0
    epoch: int = 0
    automatic: bool = False
    keep: Path | None = None

    def __post_init__(self) -> None:
        _among("like", self.like, LIKES)
        _among("shape", self.shape, SHAPES)
        for name in self.figures:
            _among("figures", name, FIGURE_NAMES)
        for name in self.policies:
            _among("policies", name, POLICY_NAMES)
        if "none" not in self.policies:
            raise ConfigError("policies: expected 'none' among them, since all others are compared with it")
        if not 0 <= self.storage_cores <= 1:
            raise ConfigError(
                f"storage_cores: expected 0 … 1, got {self.storage_cores:g}; server and trainer have one core each"
            )
        for name in ("repeats", "batch_size", "workers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected 1 or more, got {getattr(self, name)}")

    @property
    def consumer(self) -> str:
        """Kind of the consumer."""
        return "cnn" if self.consumer_samples_per_s is None else "stand-in"

    def default_count(self, mean_bytes: float) -> int:
        """Return how many samples make epochs long enough: over 5 s with raw files, about 2 s with small payloads."""
        return max(64, math.ceil(self.link_bytes_per_s * max(5.3 / mean_bytes, 2.0 / 62e3)))


def _among(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
