"""A folder of images, a server of it, and what two epochs of it are."""

import numpy as np
import pytest
import torch

import sophon
from sophon.loader.order import epoch_order
from sophon.pipeline import Key
from tests.support.servers import RECIPE, digest, make_images, serve


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", 41)


@pytest.fixture(scope="module")
def server(images):
    with serve(images, cores=2) as running:
        yield running


@pytest.fixture(scope="module")
def expected(images):
    """Two epochs, computed the plain way: no loader, no server, one sample after the other."""
    store = sophon.open_store(images)
    batches = []
    for epoch in range(2):
        samples = epoch_order(len(store), 5, epoch, shuffle=True)
        for start in range(0, len(samples), 8):
            part = samples[start : start + 8].tolist()
            tensors = [RECIPE.run(store.read(i), Key(5, epoch, i)) for i in part]
            batches.append(
                (torch.from_numpy(np.stack(tensors)), torch.tensor([int(store.manifest.labels[i]) for i in part]))
            )
    return digest(batches)
