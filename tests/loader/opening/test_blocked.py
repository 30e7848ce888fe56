"""Where nothing can be done near storage, the step that is in the way is named, with what to write instead."""

import warnings

import numpy as np
import pytest
import torch

import sophon
from sophon.loader.sources.assignment import OffloadWarning
from sophon.pipeline import Pipeline, ops
from tests.support.servers import RECIPE
from tests.support.torchvision_import import import_torchvision

import_torchvision()

from torchvision import transforms as T  # noqa: E402, N812 - as everybody calls it
from torchvision.transforms import v2  # noqa: E402


def _own(picture):
    return picture


def _length(data):
    return np.float32(len(data))


BLOCKED = {
    "own code first": (
        T.Compose([_own, T.ToTensor()]),
        r"step 1, Call\(.*_own\).*\(your own code\).*RandomResizedCrop",
    ),
    "no op": (T.Compose([T.RandomPerspective(), T.CenterCrop(32), T.ToTensor()]), "RandomPerspective.*has no op"),
    "tensor first": (
        T.Compose([T.ToTensor(), T.Resize(32)]),
        r"step 1, torchvision's ToTensor.*Put ToTensor after the",
    ),
    "image first": (
        T.Compose([v2.ToImage(), v2.Resize((32, 32))]),
        "torchvision's ToImage.*Put ToImage after the resize",
    ),
    "own decoder": (Pipeline([_length]), r"step 0, Call\(.*_length\).*Start with Decode"),
}
FREE = {
    "crop": RECIPE,
    "own code after a crop": T.Compose([T.RandomResizedCrop(32), _own, T.ToTensor()]),
    "own code after a resize": T.Compose([T.Resize(32), _own, T.ToTensor()]),
    "window": T.Compose([v2.ToImage(), v2.RandomResizedCrop(32), v2.ToDtype(torch.float32)]),
    "decode alone": Pipeline([ops.Decode()]),
}


@pytest.mark.parametrize("open_it", [sophon.DataLoader, sophon.RemoteDataset])
@pytest.mark.parametrize("recipe", BLOCKED)
def test_the_step_in_the_way_is_named_once_at_the_users_line(server, recipe, open_it):
    pipeline, message = BLOCKED[recipe]
    with pytest.warns(OffloadWarning, match=message) as caught:
        open_it(server.url, pipeline)
    # On a busy machine an AwayWarning may be among them.
    told = [warning.filename for warning in caught if warning.category is OffloadWarning]
    assert told == [__file__]


def test_a_loader_of_a_data_set_does_not_say_it_again(server):
    with pytest.warns(OffloadWarning):
        dataset = sophon.RemoteDataset(server.url, BLOCKED["own code first"][0])
    sophon.DataLoader(dataset)


@pytest.mark.parametrize("recipe", FREE)
def test_nothing_is_said_where_something_can_be_done_there(server, recipe):
    sophon.DataLoader(server.url, FREE[recipe])


@pytest.mark.parametrize("recipe", BLOCKED)
def test_nothing_is_said_of_local_files_nor_where_nothing_was_asked_for(server, images, recipe):
    sophon.DataLoader(images, BLOCKED[recipe][0])
    sophon.DataLoader(server.url, BLOCKED[recipe][0], policy="none")


@pytest.mark.parametrize("recipe", ["own code first", "tensor first"])
def test_what_is_advised_helps(server, recipe):
    better = {
        "own code first": T.Compose([T.RandomResizedCrop(32), _own, T.ToTensor()]),
        "tensor first": T.Compose([T.Resize(32), T.ToTensor()]),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = sophon.DataLoader(server.url, better[recipe])
    assert loader.dataset.pipeline.max_cut > 1
