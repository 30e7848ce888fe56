"""Epochs computed the plain way, no loader and no server, one sample after the other; and batches compared to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

import sophon
from sophon.loader.order.order import epoch_order
from sophon.pipeline import Key
from tests.support.servers import RECIPE, digest

Wanted = dict[str, tuple[int, bytes]]


def epochs_digest(path: Any, seed: int, batch_size: int, epochs: int = 2) -> str:
    """Return the digest of the batches of some epochs."""
    store = sophon.open_store(path)
    batches = []
    for epoch in range(epochs):
        samples = epoch_order(len(store), seed, epoch, shuffle=True)
        for start in range(0, len(samples), batch_size):
            part = samples[start : start + batch_size].tolist()
            tensors = [RECIPE.run(store.read(i), Key(seed, epoch, i)) for i in part]
            labels = torch.tensor([int(store.manifest.labels[i]) for i in part])
            batches.append((torch.from_numpy(np.stack(tensors)), labels))
    return digest(batches)


def wanted_in(path: Any, seed: int, epoch: int) -> Wanted:
    """Return every sample and its bits in an epoch, by its id."""
    store = sophon.open_store(path)
    return {
        store.manifest.values(i, ("id",))["id"]: (i, RECIPE.run(store.read(i), Key(seed, epoch, i)).tobytes())
        for i in range(len(store))
    }


def samples_of(batches: Iterable[Any], wanted: Wanted) -> list[int]:
    """Return the samples of some batches in order, having compared the bits of each."""
    found = []
    for images, _, columns in batches:
        for image, name in zip(images, columns["id"], strict=True):
            sample, bits = wanted[name]
            assert image.numpy().tobytes() == bits
            found.append(sample)
    return found
