"""A recipe, or a loader, that is changed after the loader was made: seen, or refused; never half of it."""

import pytest
import torch

import sophon
from sophon.errors import ConfigError
from tests.support.servers import make_images
from tests.support.torchvision_import import import_torchvision

import_torchvision()
from torchvision import transforms as v1  # noqa: E402
from torchvision.transforms import v2  # noqa: E402


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", 5)


def _set(name, value):
    return lambda step: setattr(step, name, value)


CHANGES = {
    "a crop of tensors": (lambda: v2.CenterCrop(8), _set("size", (12, 12)), True),
    "a crop of pictures": (lambda: v1.CenterCrop(8), _set("size", (12, 12)), False),
    "a chance": (lambda: v1.RandomHorizontalFlip(0.2), _set("p", 0.9), False),
    "a range": (lambda: v1.RandomResizedCrop(8), _set("scale", (0.9, 1.0)), False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_step_that_is_changed_is_named(images, change):
    make, alter, is_tensor = CHANGES[change]
    step = make()
    recipe = v2.Compose([v2.ToImage(), step] if is_tensor else [v1.Resize((16, 16)), step, v1.ToTensor()])
    loader = sophon.DataLoader(images, recipe, batch_size=1)
    list(loader)
    list(loader)
    alter(step)
    with pytest.raises(ConfigError, match=rf"{type(step).__name__}, was changed after the loader was created"):
        list(loader)


def test_a_step_that_is_added_or_taken_away_is_named(images):
    recipe = v1.Compose([v1.Resize((16, 16)), v1.ToTensor()])
    loader = sophon.DataLoader(images, recipe, batch_size=2)
    list(loader)
    recipe.transforms.append(v1.Normalize([0.5] * 3, [0.5] * 3))
    with pytest.raises(ConfigError, match="step 3, Normalize, was changed"):
        list(loader)
    del recipe.transforms[1:]
    with pytest.raises(ConfigError, match="step 2, ToTensor, was changed"):
        list(loader)


def test_a_step_of_ones_own_is_seen_as_it_is(images):
    class Add:
        most = 0.0

        def __call__(self, value):
            return value + self.most

    own = Add()
    loader = sophon.DataLoader(images, v1.Compose([v1.Resize((16, 16)), v1.ToTensor(), own]), batch_size=5)
    ((before, _),) = list(loader)
    own.most = 1.0
    ((after, _),) = list(loader)
    assert torch.equal(after, before + 1.0)


@pytest.mark.parametrize("name", ["batch_size", "collate_fn", "num_workers", "sampler", "dataset", "drop_last"])
def test_what_a_loader_was_told_cannot_be_changed(images, name):
    loader = sophon.DataLoader(images, v1.Compose([v1.Resize((16, 16)), v1.ToTensor()]), batch_size=2)
    with pytest.raises(ValueError, match=f"{name} of a loader cannot be changed"):
        setattr(loader, name, None)
