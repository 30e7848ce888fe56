"""Accelerate leaves our loader as it is, and prepares torch's own with our data set and sampler."""

import pytest
import torch
from torch.utils.data import BatchSampler
from torch.utils.data import DataLoader as TorchDataLoader

import sophon
from tests.support.servers import RECIPE, digest, make_images
from tests.support.settings import grouped

accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore")  # Accelerate's own advice is not ours to heed


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", 22)


@pytest.fixture
def accelerator():
    yield accelerate.Accelerator(cpu=True)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def _ours(images, **settings):
    return sophon.DataLoader(images, RECIPE, **grouped(batch_size=4, shuffle=True, seed=3, **settings))


def test_our_loader_passes_through_and_trains(images, accelerator):
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = _ours(images, num_workers=1)
    model, optimizer, prepared = accelerator.prepare(model, optimizer, loader)
    assert prepared is loader
    for batch, labels in prepared:
        loss = torch.nn.functional.cross_entropy(model(batch.mean((2, 3))), labels % 3)
        accelerator.backward(loss)
        optimizer.step()
    assert prepared.epoch == 1


def test_its_state_is_saved_and_loaded_with_accelerates_own(images, accelerator, tmp_path):
    loader = _ours(images)
    accelerator.register_for_checkpointing(loader)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    accelerator.save_state(tmp_path)
    rest = digest(batches)
    list(loader)  # go elsewhere
    accelerator.load_state(tmp_path)
    assert digest(loader) == rest


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_loader_with_our_data_set_and_sampler_is_prepared_and_gives_the_same_epochs(
    images, accelerator, workers
):
    dataset = sophon.RemoteDataset(images, RECIPE, seed=3)
    sampler = sophon.EpochSampler(dataset, shuffle=True, seed=3)
    theirs = TorchDataLoader(dataset, batch_sampler=BatchSampler(sampler, 4, False), num_workers=workers)
    prepared = accelerator.prepare(theirs)
    ours = _ours(images)
    for _ in range(2):
        assert digest(prepared) == digest(ours)


def test_a_resumed_sampler_goes_on_once_accelerate_knows_the_epoch(images, accelerator):
    dataset = sophon.RemoteDataset(images, RECIPE, seed=3)
    sampler = sophon.EpochSampler(dataset, shuffle=True, seed=3)
    ours = _ours(images)
    ours.set_epoch(2)
    batches = iter(ours)
    for _ in range(3):
        next(batches)
    state = ours.state_dict()
    prepared = accelerator.prepare(TorchDataLoader(dataset, batch_sampler=BatchSampler(sampler, 4, False)))
    sampler.load_state_dict(state)
    prepared.iteration = state["epoch"]  # Accelerate tells the sampler the epoch by its own count
    assert digest(prepared) == digest(batches)
