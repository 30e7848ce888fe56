"""SimCLR on photos of any kind: two views of each, pulled together; from a folder or from a storage node.

    python examples/simclr.py --data photos/                              # a folder of images
    sophon serve photos/ &                                                # near the data
    python examples/simclr.py --data grpc://localhost:7077/photos         # the same losses, fewer bytes

Labels are not needed, and not used if there are any. The losses are the same to the last digit wherever the data lies
and whatever the policy, since the tensors are.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision import transforms as T  # noqa: N812 - torchvision's own habit

import sophon
from sophon import ops

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def view(size: int) -> T.Compose:
    """Return what SimCLR does to a picture to get one view of it."""
    jitter = T.ColorJitter(0.8, 0.8, 0.8, 0.2)
    blur = T.GaussianBlur(size // 20 * 2 + 1, sigma=(0.1, 2.0))
    return T.Compose(
        [
            T.RandomResizedCrop(size),
            T.RandomHorizontalFlip(),
            T.RandomApply([jitter], p=0.8),
            T.RandomGrayscale(p=0.2),
            T.RandomApply([blur], p=0.5),
            T.ToTensor(),
            T.Normalize(MEAN, STD),
        ]
    )


def encoder(width: int = 32, features: int = 64) -> nn.Sequential:
    """Return a small network; a ResNet would stand here."""
    return nn.Sequential(
        nn.Conv2d(3, width, 5, stride=4),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, features),
    )


def contrastive_loss(one: Tensor, other: Tensor, temperature: float = 0.5) -> Tensor:
    """Return SimCLR's loss: of all other views in the batch, each should be nearest to that of the same photo."""
    both = functional.normalize(torch.cat([one, other]), dim=1)
    count = len(one)
    alike = both @ both.T / temperature
    alike.fill_diagonal_(-torch.inf)  # a view is not compared with itself
    partner = torch.arange(2 * count).roll(count)
    return functional.cross_entropy(alike, partner)


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> list[float]:
    """Train an epoch and return the loss of every step."""
    losses = []
    for batch in loader:
        one, other = batch[0] if isinstance(batch[0], list) else batch  # with labels, or without
        loss = contrastive_loss(model(one), model(other))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(arguments: Sequence[str] | None = None) -> list[list[float]]:
    """Train, and return the losses of each epoch."""
    parser = argparse.ArgumentParser(description="SimCLR from a folder or a storage node.")
    parser.add_argument("--data", required=True, help="folder of images, or grpc://HOST:PORT/NAME of `sophon serve`")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224, help="pixels of a view")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--policy", default=None, help='"none" for whole files; by default the loader plans for itself')
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args(arguments)

    torch.manual_seed(told.seed)
    loader = sophon.DataLoader(
        told.data,
        ops.Views([view(told.size)] * 2),
        batch_size=told.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=told.workers,
        seed=told.seed,
        policy=told.policy,
    )
    model = encoder()
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
