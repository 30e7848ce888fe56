"""A data set, and what two epochs of it must be whatever happens."""

import numpy as np
import pytest
import torch

import sophon
from sophon.loader.order import epoch_order
from sophon.pipeline import Key
from tests.faults.struck import BATCH, COUNT, SEED
from tests.support.servers import RECIPE, digest, make_images


@pytest.fixture(scope="package")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("faults") / "train", COUNT)


@pytest.fixture(scope="package")
def expected(images):
    """Two epochs, computed the plain way: no loader, no server, one sample after the other."""
    store = sophon.open_store(images)
    batches = []
    for epoch in range(2):
        samples = epoch_order(COUNT, SEED, epoch, shuffle=True)
        for start in range(0, COUNT, BATCH):
            part = samples[start : start + BATCH].tolist()
            tensors = [RECIPE.run(store.read(i), Key(SEED, epoch, i)) for i in part]
            labels = torch.tensor([int(store.manifest.labels[i]) for i in part])
            batches.append((torch.from_numpy(np.stack(tensors)), labels))
    return digest(batches)
