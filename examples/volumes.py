"""3-D segmentation with a small 3D U-Net: CT scans and labels that are cropped together; from a folder or from a node.

    sophon synth scans --like kits19 --count 16 --side 128
    python examples/volumes.py --data 'scans?images=images&labels=labels'
    sophon serve 'scans?images=images&labels=labels' &                      # near the data
    python examples/volumes.py --data grpc://localhost:7077/scans           # the same losses, fewer bytes

The losses are the same to the last digit wherever the data lies and whatever the policy, since the tensors are.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import sophon
from sophon import ops

CLASSES = 3  # background, kidney, tumour


def recipe(crop: int) -> list[Any]:
    """Return what is done to a scan and its label, as in MLPerf's 3D U-Net on KiTS19."""
    return [
        ops.DecodeVolume(label="label", foreground="foreground"),
        ops.ResampleVolume((1.6, 1.2, 1.2)),
        ops.NormalizeVolume(),
        ops.RandomBalancedCrop((crop, crop, crop), oversampling=0.4),
        ops.RandomFlipVolume(),
        ops.CastVolume(),
        ops.RandomBrightnessVolume(),
        ops.RandomNoiseVolume(),
    ]


def block(inner: int, outer: int) -> nn.Sequential:
    """Return two convolutions."""
    return nn.Sequential(
        nn.Conv3d(inner, outer, 3, padding=1), nn.ReLU(), nn.Conv3d(outer, outer, 3, padding=1), nn.ReLU()
    )


class UNet3d(nn.Module):
    """A 3D U-Net of one step down and one up."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down, self.bottom, self.up = block(1, width), block(width, 2 * width), block(3 * width, width)
        self.head = nn.Conv3d(width, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return a score of each class for each voxel."""
        beside = self.down(x)
        x = self.bottom(functional.max_pool3d(beside, 2))
        for axis in (-1, -2, -3):
            x = x.repeat_interleave(2, axis)
        return self.head(self.up(torch.cat([x, beside], 1)))


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> list[float]:
    """Train an epoch and return the loss of every step."""
    losses = []
    for batch in loader:
        loss = functional.cross_entropy(model(batch["image"]), batch["label"][:, 0].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(arguments: Sequence[str] | None = None) -> list[list[float]]:
    """Train, and return the losses of each epoch."""
    parser = argparse.ArgumentParser(description="3-D segmentation from a folder or a storage node.")
    parser.add_argument("--data", required=True, help="FOLDER?images=…&labels=…, or grpc://HOST:PORT/NAME of a node")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--crop", type=int, default=64, help="voxels, a multiple of 2")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--policy", default=None, help='"none" for whole files; by default the loader plans for itself')
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args(arguments)

    torch.manual_seed(told.seed)
    loader = sophon.DataLoader(
        told.data,
        recipe(told.crop),
        batch_size=told.batch_size,
        shuffle=True,
        num_workers=told.workers,
        seed=told.seed,
        policy=told.policy,
    )
    model = UNet3d()
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
