"""A folder of images, a server of it, and what two epochs of it are."""

import pytest

from tests.support.epochs import epochs_digest
from tests.support.servers import make_images, serve


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
    return epochs_digest(images, seed=5, batch_size=8)
