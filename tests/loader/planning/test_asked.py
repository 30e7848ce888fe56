"""A data set that nobody tells the epoch says so, and is told by the Trainer's callback."""

from types import SimpleNamespace

import pytest
from torch.utils.data import ConcatDataset, DataLoader, Subset

import sophon
from sophon.pipeline import Pipeline, ops
from tests.support.servers import RECIPE, make_images
from tests.support.torch_workers import end_workers

STEADY = Pipeline([ops.Decode(), ops.CenterCrop(8), ops.ToTensor()])


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", 8)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_second_pass_without_a_word_is_told_of(images, workers):
    dataset = sophon.RemoteDataset(images, RECIPE)
    list(DataLoader(dataset, 4, num_workers=workers))
    batches = iter(DataLoader(dataset, 4, num_workers=workers))
    with pytest.raises(sophon.SeedWarning, match=r"with set_epoch, with an EpochSampler, .*EpochCallback"):
        list(batches)  # warnings are errors in these tests
    end_workers(batches)


def test_who_tells_the_epoch_or_has_nothing_random_is_left_alone(images):
    dataset, steady = sophon.RemoteDataset(images, RECIPE), sophon.RemoteDataset(images, STEADY)
    sampler = sophon.EpochSampler(dataset, shuffle=True)
    for epoch in range(3):
        dataset.set_epoch(epoch)
        list(DataLoader(dataset, 4))
        list(DataLoader(steady, 4))
    for _ in range(3):
        list(DataLoader(dataset, 4, sampler=sampler))
    for _ in range(3):
        dataset[0]  # a look at one sample


@pytest.mark.parametrize(("said", "epoch"), [(None, 0), (0.25, 0), (1.0, 1), (1.25, 1), (2 - 1e-12, 2)])
def test_the_callback_tells_all_members_the_epoch_that_goes_on(images, said, epoch):
    one, two = (sophon.RemoteDataset(images, RECIPE) for _ in range(2))
    wrapped = ConcatDataset([Subset(one, [1, 2]), two, [3]])
    callback = sophon.EpochCallback()
    callback.on_train_begin(None, None, None, model=None)
    callback.on_epoch_begin(None, SimpleNamespace(epoch=said), None, train_dataloader=SimpleNamespace(dataset=wrapped))
    assert (one.epoch, two.epoch) == (epoch, epoch)
    assert not hasattr(callback, "anything_else")
