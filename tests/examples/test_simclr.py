"""SimCLR's example trains on a CPU, with the same losses from a folder and from a storage node, whatever the policy."""

import importlib.util
from pathlib import Path

import pytest
import torch

from tests.support.servers import make_images, serve
from tests.support.torchvision_import import import_torchvision

EXAMPLE = Path(__file__).parents[2] / "examples" / "simclr.py"
TINY = ["--epochs", "2", "--batch-size", "8", "--size", "32", "--workers", "1"]


@pytest.fixture(scope="module")
def example():
    import_torchvision()
    spec = importlib.util.spec_from_file_location("simclr_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _one_thread():
    # Sums of several threads may be added up in another order; the losses are compared to the last digit.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore::sophon.OffloadWarning")  # not all of these files can have a window
def test_losses_are_the_same_from_a_folder_and_from_a_node_whatever_the_policy(example, tmp_path):
    images = make_images(tmp_path / "train", 24)
    folder = example.main(["--data", str(images), *TINY])
    assert [len(losses) for losses in folder] == [3, 3]
    assert len({loss for losses in folder for loss in losses}) == 6
    with serve(images) as server:
        for policy in ("none", "0:window", "2:webp", "all", "optimal"):
            assert example.main(["--data", server.url, "--policy", policy, *TINY]) == folder, policy


def test_the_loss_is_least_where_the_views_of_a_photo_are_alike(example):
    views = torch.eye(4)
    near, far = example.contrastive_loss(views, views), example.contrastive_loss(views, views.roll(1, 0))
    assert near < far
    # Each of the 8 views: 2 is its partner's, 0 that of the six others.
    expected = -torch.log(torch.tensor(2.0).exp() / (torch.tensor(2.0).exp() + 6))
    torch.testing.assert_close(near, expected)
