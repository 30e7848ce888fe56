"""Segmentation with a small U-Net: photos and masks that are cropped together; from a folder or from a storage node.

    python examples/segmentation.py --data 'coco?images=images&masks=masks' --classes 81
    sophon serve 'coco?images=images&masks=masks' &                                   # near the data
    python examples/segmentation.py --data grpc://localhost:7077/coco --classes 81    # the same losses, fewer bytes

The losses are the same to the last digit wherever the data lies and whatever the policy, since the tensors are.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision import tv_tensors
from torchvision.transforms import v2

import sophon

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
UNLABELLED = 255


def recipe(crop: int) -> sophon.Joint:
    """Return what is done to a photo and its mask, as in torchvision's reference."""
    fill = {tv_tensors.Mask: UNLABELLED, "others": 0}
    dtypes = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
    steps = [
        v2.RandomResize(crop // 2, 2 * crop),
        v2.RandomHorizontalFlip(),
        v2.RandomCrop(crop, pad_if_needed=True, fill=fill),
        v2.ToImage(),
        v2.ToDtype(dtypes, scale=True),
        v2.Normalize(MEAN, STD),
        v2.ToPureTensor(),
    ]
    return sophon.Joint(v2.Compose(steps), sample=("image", "mask"))


def block(inner: int, outer: int) -> nn.Sequential:
    """Return two convolutions."""
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, padding=1), nn.ReLU(), nn.Conv2d(outer, outer, 3, padding=1), nn.ReLU()
    )


class UNet(nn.Module):
    """A U-Net of two steps down and two up."""

    def __init__(self, classes: int, width: int = 8) -> None:
        super().__init__()
        self.down = nn.ModuleList([block(3, width), block(width, 2 * width)])
        self.bottom = block(2 * width, 4 * width)
        self.up = nn.ModuleList([block(6 * width, 2 * width), block(3 * width, width)])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return a score of each class for each pixel."""
        kept = []
        for down in self.down:
            x = down(x)
            kept.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, beside in zip(self.up, reversed(kept), strict=True):
            larger = x.repeat_interleave(2, -1).repeat_interleave(2, -2)
            x = up(torch.cat([larger, beside], 1))
        return self.head(x)


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> list[float]:
    """Train an epoch and return the loss of every step."""
    losses = []
    for photos, masks in loader:
        loss = functional.cross_entropy(model(photos), masks, ignore_index=UNLABELLED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(arguments: Sequence[str] | None = None) -> list[list[float]]:
    """Train, and return the losses of each epoch."""
    parser = argparse.ArgumentParser(description="Segmentation from a folder or a storage node.")
    parser.add_argument("--data", required=True, help="FOLDER?images=…&masks=…, or grpc://HOST:PORT/NAME of a node")
    parser.add_argument("--classes", type=int, required=True, help="numbers that masks may hold")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--crop", type=int, default=512, help="pixels, a multiple of 4")
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
    model = UNet(told.classes)
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
