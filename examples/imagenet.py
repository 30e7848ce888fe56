"""Train an image classifier with samples from a storage node or a folder.

    python examples/imagenet.py --data grpc://storage:7077/train --val grpc://storage:7077/val --arch resnet18
    python examples/imagenet.py --data /data/imagenet/train --val /data/imagenet/val --arch resnet18

Both give the same losses, to the last digit, on the same machine: the tensors are the same bits wherever the samples
come from and whatever `--policy` says. Class folders are labels, as in torchvision's ImageFolder.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import sophon
from sophon import ops
from sophon.bench.torchvision_import import import_torchvision
from sophon.units import format_bytes, format_seconds

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SMALL = "small"  # the built-in network, for machines without torchvision and for a first try on a CPU


def main(arguments: Sequence[str] | None = None) -> list[dict[str, float]]:
    """Train, and return loss and accuracy of every epoch."""
    args = parse(arguments)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = make_loader(args.data, args, training=True)
    val_loader = make_loader(args.val, args, training=False) if args.val else None
    classes = len(train_loader.dataset.classes)
    if classes < 2:
        raise SystemExit(f"{args.data}: {classes} classes; images in one folder per class were expected")
    model = make_model(args.arch, classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    # The usual schedule: a tenth of the rate after every third of the training.
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=max(1, args.epochs // 3), gamma=0.1)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    first = resume(args.checkpoint, parts, device) if args.resume else 0
    train_loader.set_epoch(first)

    history = []
    for epoch in range(first, args.epochs):
        row = train_epoch(model, train_loader, optimizer, device)
        if val_loader is not None:
            row |= validate(model, val_loader, device)
        schedule.step()
        history.append(row)
        print(f"epoch {epoch}: {describe(row)}", flush=True)
        print(f"  loader: {describe_loader(train_loader)}", flush=True)
        if args.checkpoint is not None:
            save(args.checkpoint, parts, epoch + 1)
    if train_loader.plan is not None:
        print(train_loader.plan.explain())
    return history


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train an image classifier from a storage node or a folder.")
    parser.add_argument("--data", required=True, help="training images: a folder, or grpc://host:port/name")
    parser.add_argument("--val", help="images to validate with, likewise")
    parser.add_argument("--arch", default=SMALL, help=f"a model of torchvision such as resnet18, or {SMALL!r}")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate at the start")
    parser.add_argument("--workers", type=int, default=4, help="threads or processes that preprocess")
    parser.add_argument("--size", type=int, default=224, help="edge of the pictures that the model sees")
    parser.add_argument("--policy", help="none, all, resize, fastflow, sophon, optimal, or one cut such as 2:webp")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, help="written after every epoch")
    parser.add_argument("--resume", action="store_true", help="go on from --checkpoint, if there is one")
    return parser.parse_args(arguments)


def make_loader(data: str, args: argparse.Namespace, *, training: bool) -> sophon.DataLoader:
    """Return the batches of one data set: random crops to train with, the middle of each picture to validate with."""
    if training:
        view = [ops.RandomResizedCrop(args.size), ops.RandomHorizontalFlip()]
    else:
        view = [ops.Resize(args.size * 8 // 7), ops.CenterCrop(args.size)]
    one_cut = ":" in (args.policy or "")  # of the training pipeline, which is not that of validation
    return sophon.DataLoader(
        data,
        [ops.Decode(), *view, ops.ToTensor(), ops.Normalize(MEAN, STD)],
        batch_size=args.batch_size,
        shuffle=training,
        num_workers=args.workers,
        pin_memory=torch.cuda.is_available(),
        seed=args.seed,
        policy=None if one_cut and not training else args.policy,
    )


def make_model(arch: str, classes: int) -> nn.Module:
    """Return an untrained model."""
    if arch == SMALL:
        return SmallNet(classes)
    torchvision = import_torchvision()
    if torchvision is None:
        raise SystemExit(f"--arch {arch} needs torchvision: pip install torchvision, or take --arch {SMALL}")
    try:
        return torchvision.models.get_model(arch, weights=None, num_classes=classes)
    except ValueError as error:
        raise SystemExit(f"--arch {arch}: torchvision has no such model ({error})") from error


class SmallNet(nn.Module):
    """Four convolutions, each halving the picture, and a linear layer over their mean."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        widths = (3, 16, 32, 64, 128)
        layers = [
            layer
            for before, after in pairwise(widths)
            for layer in (nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU())
        ]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classify = nn.Linear(widths[-1], classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return one score per class."""
        return self.classify(self.features(images))


def train_epoch(
    model: nn.Module, loader: Any, optimizer: torch.optim.Optimizer, device: torch.device
) -> dict[str, float]:
    """Take one step per batch, and return the mean loss, the accuracy and the speed."""
    model.train()
    loss_sum, right, seen = 0.0, 0, 0
    start_s = time.perf_counter()
    for images, labels in moved(loader, device):
        scores = model(images)
        loss = functional.cross_entropy(scores, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        seen += len(labels)
        loss_sum += loss.item() * len(labels)
        right += int((scores.argmax(dim=1) == labels).sum())
    seconds = time.perf_counter() - start_s
    return {"loss": loss_sum / seen, "accuracy": right / seen, "samples_per_s": seen / seconds}


def moved(loader: Any, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Return the batches where the model is."""
    for images, labels in loader:
        yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


@torch.no_grad()
def validate(model: nn.Module, loader: Any, device: torch.device) -> dict[str, float]:
    """Return loss and accuracy on pictures that the model was not trained with."""
    model.eval()
    loss_sum, right, seen = 0.0, 0, 0
    for images, labels in moved(loader, device):
        scores = model(images)
        seen += len(labels)
        loss_sum += float(functional.cross_entropy(scores, labels, reduction="sum"))
        right += int((scores.argmax(dim=1) == labels).sum())
    return {"val_loss": loss_sum / seen, "val_accuracy": right / seen}


def save(path: Path, parts: dict[str, Any], epoch: int) -> None:
    """Write a checkpoint; the old one is there until the new one is whole."""
    partial = path.with_name(f"{path.name}.partial")
    torch.save({"epoch": epoch, **{name: part.state_dict() for name, part in parts.items()}}, partial)
    partial.replace(path)


def resume(path: Path | None, parts: dict[str, Any], device: torch.device) -> int:
    """Load a checkpoint, if there is one, and return the epoch to go on with."""
    if path is None:
        raise SystemExit("--resume goes with --checkpoint FILE")
    if not path.exists():
        return 0
    saved = torch.load(path, map_location=device, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    return int(saved["epoch"])


def describe(row: dict[str, float]) -> str:
    """Return what an epoch came to, in one line."""
    text = f"loss {row['loss']:.6f}, accuracy {row['accuracy']:.1%}, {row['samples_per_s']:,.0f} samples/s"
    if "val_loss" in row:
        text += f"; validation loss {row['val_loss']:.6f}, accuracy {row['val_accuracy']:.1%}"
    return text


def describe_loader(loader: sophon.DataLoader) -> str:
    """Return what the loader has done since it was made, in one line."""
    stats = loader.stats
    cuts = ", ".join(f"{count / max(stats.samples, 1):.0%} {cut}" for cut, count in stats.cuts.most_common(4))
    return (
        f"{stats.samples:,} samples, {format_bytes(stats.link_bytes)} over the link ({cuts}); the model waited "
        f"{format_seconds(stats.waited_s)}, storage spent {format_seconds(stats.storage_cpu_s)} of CPU"
    )


if __name__ == "__main__":
    main()
