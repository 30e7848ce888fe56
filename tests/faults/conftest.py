"""A data set, and what two epochs of it must be whatever happens."""

import pytest

from tests.faults.struck import BATCH, COUNT, SEED
from tests.support.epochs import epochs_digest
from tests.support.servers import make_images


@pytest.fixture(scope="package")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("faults") / "train", COUNT)


@pytest.fixture(scope="package")
def expected(images):
    """Two epochs, computed the plain way: no loader, no server, one sample after the other."""
    return epochs_digest(images, SEED, BATCH)
