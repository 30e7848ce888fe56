"""Detection with a small network: photos and boxes that are scaled and cropped together; from a folder or from a node.

    python examples/detection.py --data 'coco?images=train2017&boxes=instances_train2017.json' --classes 91
    sophon serve 'coco=coco?images=train2017&boxes=instances_train2017.json' &        # near the data
    python examples/detection.py --data grpc://localhost:7077/coco --classes 91       # the same losses, fewer bytes

Boxes may be COCO's JSON, or a folder of YOLO's text files or Pascal VOC's XML files. Losses are the same to the last
digit wherever the data lies and whatever the policy, since tensors and boxes are.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.transforms import v2

import sophon

STRIDE = 16  # pixels to a cell of the network's map


def recipe(size: int) -> sophon.Joint:
    """Return what is done to a photo and its boxes: torchvision's reference with large jitter of scale."""
    steps = [
        v2.ScaleJitter((size, size)),
        v2.RandomCrop(size, pad_if_needed=True),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.ConvertBoundingBoxFormat("XYXY"),
        v2.ClampBoundingBoxes(),
        v2.SanitizeBoundingBoxes(),
        v2.ToPureTensor(),
    ]
    return sophon.Joint(v2.Compose(steps), sample=("image", {"boxes": "boxes", "labels": "labels"}))


class Detector(nn.Module):
    """Says of every cell which class has its middle there, if any, and how large its box is."""

    def __init__(self, classes: int, width: int = 8) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inner = 3
        for outer in (width, 2 * width, 4 * width, 4 * width):
            layers += [nn.Conv2d(inner, outer, 3, stride=2, padding=1), nn.ReLU()]
            inner = outer
        self.body = nn.Sequential(*layers)
        self.head = nn.Conv2d(inner, classes + 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return for each cell a score of each class, then the logarithms of width and height."""
        return self.head(self.body(x))


def loss_of(found: Tensor, targets: Sequence[dict[str, Tensor]]) -> Tensor:
    """Return how far the map is from the boxes of a batch."""
    wanted = torch.zeros_like(found[:, :-2])
    off = found.new_zeros(())
    boxes = 0
    for at, target in enumerate(targets):
        middles = (target["boxes"][:, :2] + target["boxes"][:, 2:]) / 2
        sizes = (target["boxes"][:, 2:] - target["boxes"][:, :2]).clamp(min=1).log()
        for (x, y), size, label in zip(middles.tolist(), sizes, target["labels"].tolist(), strict=True):
            row, column = (min(int(place // STRIDE), found.shape[-1] - 1) for place in (y, x))
            wanted[at, label, row, column] = 1.0
            off = off + functional.smooth_l1_loss(found[at, -2:, row, column], size)
            boxes += 1
    scores = functional.binary_cross_entropy_with_logits(found[:, :-2], wanted)
    return scores + off / max(boxes, 1)


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> list[float]:
    """Train an epoch and return the loss of every step."""
    losses = []
    for photos, targets in loader:  # tuples, since each photo has boxes of its own number
        loss = loss_of(model(torch.stack(photos)), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(arguments: Sequence[str] | None = None) -> list[list[float]]:
    """Train, and return the losses of each epoch."""
    parser = argparse.ArgumentParser(description="Detection from a folder or a storage node.")
    parser.add_argument("--data", required=True, help="FOLDER?images=…&boxes=…, or grpc://HOST:PORT/NAME of a node")
    parser.add_argument("--classes", type=int, required=True, help="one more than the largest label")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--size", type=int, default=640, help="pixels, a multiple of 16")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--policy", default=None, help='"none" for whole files; by default the loader plans for itself')
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args(arguments)

    torch.manual_seed(told.seed)
    loader = sophon.DataLoader(
        told.data,
        recipe(told.size),
        batch_size=told.batch_size,
        shuffle=True,
        num_workers=told.workers,
        seed=told.seed,
        policy=told.policy,
    )
    model = Detector(told.classes)
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
