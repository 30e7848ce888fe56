"""Albumentations as a recipe, or in one: the same bits for any number and kind of workers, here and over a link."""

import os
from collections import Counter

import numpy as np
import pytest
import torch

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # its import would ask the network for a newer release

import sophon
from sophon.errors import ConfigError
from sophon.loader.sources.assignment import OffloadWarning, SeedWarning
from sophon.pipeline import Key, Pipeline, ops
from tests.support.servers import digest
from tests.support.settings import grouped
from tests.support.torchvision_import import import_torchvision

import_torchvision()
A = pytest.importorskip("albumentations")

from albumentations.pytorch import ToTensorV2  # noqa: E402 - not before what skips the module
from torchvision import transforms as T  # noqa: E402, N812 - as everybody calls it


def _steps():
    """Return new transforms each time, since a Compose seeds those it is made of."""
    noise = A.OneOf([A.GaussNoise(), A.GaussianBlur(), A.CoarseDropout()], p=0.8)
    return [A.RandomResizedCrop((40, 40)), A.HorizontalFlip(), A.ColorJitter(), noise, A.Affine(rotate=(-20, 20))]


def _tensors():
    return A.Compose([*_steps(), A.Normalize(), ToTensorV2()])


RECIPES = {
    "alone": _tensors,
    "arrays": lambda: A.Compose(_steps()),
    "one transform": lambda: A.RandomResizedCrop((40, 40)),
    "after a crop": lambda: T.Compose([T.RandomResizedCrop(44), A.Compose([*_steps(), ToTensorV2()])]),
    "with a seed of its own": lambda: A.Compose([*_steps(), ToTensorV2()], seed=137),
}
IS_BLOCKED = {name for name in RECIPES if name != "after a crop"}
WORKERS = {
    "no workers": {"num_workers": 0},
    "threads": {"num_workers": 2},
    "processes": {"num_workers": 2, "kind": "processes"},
}


def _two_epochs(data, recipe, **more):
    loader = sophon.DataLoader(data, recipe, **grouped(batch_size=8, shuffle=True, seed=5, **more))
    return digest(batch for _ in range(2) for batch in loader)


@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=() if name == "after a crop" else pytest.mark.slow) for name in RECIPES]
)
def test_same_bits_for_all_workers_here_and_over_a_link(images, server, recipe):
    make = RECIPES[recipe]
    found = {_two_epochs(images, make(), **settings) for settings in WORKERS.values()}
    # Where nothing can run near storage it is meant so.
    policy = {"policy": "none"} if recipe in IS_BLOCKED else {"policy": "2:webp"}
    found |= {_two_epochs(server.url, make(), **settings, **policy) for settings in WORKERS.values()}
    assert len(found) == 1


def test_every_epoch_sample_and_seed_has_other_draws(images):
    data = sophon.open_store(images).read(0)
    pipeline = Pipeline.from_torchvision(_tensors())
    keys = [Key(seed, epoch, sample) for seed in (0, 1) for epoch in (0, 1) for sample in (0, 1)]
    found = {pipeline.run(data, key).numpy().tobytes() for key in keys}
    assert len(found) == len(keys)
    again = Pipeline.from_torchvision(_tensors())
    assert {again.run(data, key).numpy().tobytes() for key in keys} == found


def test_transforms_of_one_compose_are_drawn_independently(images):
    """Each of four flips has its share: `Compose.set_random_seed` would give all transforms the same draws."""
    whole = Pipeline([ops.Decode(), ops.Resize((2, 2))]).run(sophon.open_store(images).read(0), Key(0, 0, 0))
    pixels = np.array(whole)
    flips = {pixels[::y, ::x].tobytes(): (y, x) for y in (1, -1) for x in (1, -1)}
    assert len(flips) == 4
    pipeline = Pipeline([ops.Decode(), ops.Resize((2, 2)), A.Compose([A.HorizontalFlip(), A.VerticalFlip()])])
    data = sophon.open_store(images).read(0)
    found = Counter(flips[pipeline.run(data, Key(0, epoch, 0)).tobytes()] for epoch in range(400))
    assert all(60 <= found[flip] <= 140 for flip in flips.values()), found


def test_draws_are_those_of_albumentations_with_generators_of_the_same_seed(images):
    picture = np.array(Pipeline([ops.Decode()]).run(sophon.open_store(images).read(0), Key(0, 0, 0)))
    seeds = []

    class Spy(A.Compose):
        def set_random_state(self, random_generator, py_random):
            seeds.append((random_generator.bit_generator.state, py_random.getstate()))
            super().set_random_state(random_generator, py_random)

    ours = Pipeline([ops.Decode(), Spy([*_steps(), ToTensorV2()])]).run(sophon.open_store(images).read(0), Key(9, 3, 0))
    (numpy_state, python_state) = seeds[-1]
    theirs = A.Compose([*_steps(), ToTensorV2()])
    theirs.random_generator.bit_generator.state = numpy_state
    theirs.py_random.setstate(python_state)
    theirs.set_random_state(theirs.random_generator, theirs.py_random)
    assert torch.equal(ours, theirs(image=picture)["image"])


def test_a_lambda_that_hides_it_is_told_of(images):
    hidden = A.Compose(_steps())
    recipe = T.Compose([T.RandomResizedCrop(44), T.Lambda(lambda image: hidden(image=np.array(image))["image"])])
    message = r"step 2 \(Call\(.*<lambda>, line \d+\)\).*Pass albumentations transforms directly"
    with pytest.warns(SeedWarning, match=message):
        sophon.DataLoader(images, recipe)


def test_nothing_is_said_of_one_that_is_seen(images):
    sophon.DataLoader(images, T.Compose([T.RandomResizedCrop(44), A.Compose(_steps())]))


def test_one_on_tensors_is_refused_early(images):
    with pytest.raises(ConfigError, match="albumentations' Compose"):
        sophon.DataLoader(images, T.Compose([T.RandomResizedCrop(44), T.ToTensor(), A.Compose(_steps())]))


def test_a_recipe_of_nothing_else_stays_on_the_trainer_which_is_told(server):
    with pytest.warns(OffloadWarning, match="albumentations' Compose.*such as RandomResizedCrop"):
        sophon.DataLoader(server.url, _tensors())
