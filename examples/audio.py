"""Classify sounds as in ESC-50: WAV or FLAC files in class folders, from a folder or from a storage node.

    python examples/audio.py --data esc50/                                # class folders of .wav or .flac files
    sophon serve esc50/ &                                                 # near the data
    python examples/audio.py --data grpc://localhost:7077/esc50           # the same losses, a fifth of the bytes

Each epoch hears another second of every clip, and only that second crosses the link. The losses are the same to the
last digit wherever the data lies and whatever the policy, since the tensors are.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import sophon
from sophon import ops


def recipe(rate: int, seconds: float, bands: int) -> list[Any]:
    """Return what is done to a file: a random second, louder or softer, as a spectrogram with gaps (SpecAugment)."""
    return [
        ops.DecodeAudio(),
        ops.Mono(),
        ops.Resample(rate),
        ops.RandomTimeCrop(int(rate * seconds), pad_if_needed=True),
        ops.RandomGain(-6.0, 6.0),
        ops.MelSpectrogram(rate, n_fft=512, hop=256, n_mels=bands, decibels=True),
        ops.TimeMask(8),
        ops.FrequencyMask(bands // 8),
    ]


def classifier(classes: int, width: int = 16) -> nn.Sequential:
    """Return a small network; a ResNet would stand here."""
    return nn.Sequential(
        nn.BatchNorm2d(1),
        nn.Conv2d(1, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, classes),
    )


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> list[float]:
    """Train an epoch and return the loss of every step."""
    losses = []
    for spectrograms, labels in loader:
        loss = functional.cross_entropy(model(spectrograms), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(arguments: Sequence[str] | None = None) -> list[list[float]]:
    """Train, and return the losses of each epoch."""
    parser = argparse.ArgumentParser(description="Sounds from a folder or a storage node.")
    parser.add_argument("--data", required=True, help="folder of sounds, or grpc://HOST:PORT/NAME of `sophon serve`")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rate", type=int, default=16_000, help="samples per second to resample to")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a crop")
    parser.add_argument("--bands", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--policy", default=None, help='"none" for whole files; by default the loader plans for itself')
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args(arguments)

    torch.manual_seed(told.seed)
    loader = sophon.DataLoader(
        told.data,
        recipe(told.rate, told.seconds, told.bands),
        batch_size=told.batch_size,
        shuffle=True,
        num_workers=told.workers,
        seed=told.seed,
        policy=told.policy,
    )
    model = classifier(len(loader.dataset.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=told.lr, momentum=0.9)
    history = []
    for epoch in range(told.epochs):
        loader.set_epoch(epoch)
        history.append(train_epoch(model, optimizer, loader))
        mean = sum(history[-1]) / len(history[-1])
        print(f"epoch {epoch}: loss {mean:.4f}, {loader.stats.link_bytes / 1e6:,.1f} MB received so far")
    return history


if __name__ == "__main__":
    main()
