"""Consumers of batches: a stand-in for an accelerator, or a small network trained on the CPU."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from sophon.errors import ConfigError

_WARM_STEPS, _TIMED_STEPS = 2, 5


class Consumer(ABC):
    """Takes batches and counts the seconds that it is busy."""

    def __init__(self) -> None:
        self.busy_s = 0.0

    def take(self, batch: Any) -> None:
        """Train on one batch."""
        start_s = time.monotonic()
        self._step(batch[0] if isinstance(batch, list | tuple) else batch)
        self.busy_s += time.monotonic() - start_s

    @abstractmethod
    def _step(self, pictures: torch.Tensor) -> None: ...


class StandIn(Consumer):
    """A simulated accelerator that sleeps for as long as a real one would compute, and uses no CPU.

    Args:
        samples_per_s: Its speed.
    """

    def __init__(self, samples_per_s: float) -> None:
        super().__init__()
        self._samples_per_s = samples_per_s
        self._late_s = 0.0

    def _step(self, pictures: torch.Tensor) -> None:
        # A sleep ends a little late; the delay is subtracted from the next one, so that the speed is right.
        end_s = time.monotonic() + len(pictures) / self._samples_per_s - self._late_s
        time.sleep(max(0.0, end_s - time.monotonic()))
        self._late_s = min(time.monotonic() - end_s, 0.01)


class Cnn(Consumer):
    """Four convolutions, with forward pass, backward pass and optimizer step, on the trainer's own CPU."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        widths = (3, 16, 32, 64)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        self._model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._loss = nn.CrossEntropyLoss()

    def _step(self, pictures: torch.Tensor) -> None:
        # Synthetic labels: only the cost of training matters here, not its result.
        loss = self._loss(self._model(pictures), torch.zeros(len(pictures), dtype=torch.int64))
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


def consumer_of(kind: str, samples_per_s: float | None) -> Consumer:
    """Return a new consumer: ``stand-in`` with its speed, or ``cnn``."""
    if kind == "cnn":
        return Cnn()
    if kind == "stand-in" and samples_per_s is not None:
        return StandIn(samples_per_s)
    raise ConfigError(
        f"expected consumer 'cnn', or 'stand-in' with a rate in samples per second, got {kind!r} {samples_per_s!r}"
    )


def cnn_speed(batch_size: int) -> float:
    """Return the samples per second that the network takes when it never waits for data."""
    cnn, batch = Cnn(), torch.zeros(batch_size, 3, 224, 224)
    for _ in range(_WARM_STEPS):
        cnn.take(batch)
    cnn.busy_s = 0.0
    for _ in range(_TIMED_STEPS):
        cnn.take(batch)
    return _TIMED_STEPS * batch_size / cnn.busy_s
