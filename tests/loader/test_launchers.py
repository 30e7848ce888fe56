"""Real launchers with two processes on CPUs: nothing missing or twice, the same bits, resumed with other ranks."""

import pytest

from tests.support.launched import BATCH
from tests.support.launching import expected_of, seen_by_ranks
from tests.support.marks import slow
from tests.support.servers import make_images, serve

COUNT, EPOCHS, STOP = 24, 2, 3


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", COUNT)


@pytest.fixture(scope="module")
def node(images):
    with serve(images) as running:
        yield running


def _launch(launcher, node, folder, stop, ranks):
    program = ["-m", "tests.support.launched", launcher, node.url, str(folder), str(EPOCHS), str(stop), str(ranks)]
    return seen_by_ranks(program, ranks, folder, by_torchrun=launcher in ("torchrun", "accelerate"))


@pytest.mark.parametrize(
    ("launcher", "ranks"),
    [
        ("spawn", (2, 1)),
        *slow(*((name, (2, n)) for name in ("torchrun", "accelerate", "lightning") for n in (2, 1)), ("spawn", (2, 2))),
    ],
)
def test_ranks_share_every_epoch_and_go_on_where_others_stopped(launcher, ranks, node, images, tmp_path):
    first = _launch(launcher, node, tmp_path, STOP, ranks[0])
    assert len(first[0]) == STOP * BATCH * ranks[0]
    second = _launch(launcher, node, tmp_path, 0, ranks[1])
    for epoch in range(EPOCHS):
        seen = first[epoch] + second[epoch]
        assert len(seen) == COUNT, "nothing is missing or there twice"
        assert set(seen) == expected_of(images, epoch)
