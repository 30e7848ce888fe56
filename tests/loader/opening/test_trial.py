"""Own callables depend on the seed, or somebody is told; transforms that can never work are refused early."""

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

import sophon
from sophon.errors import ConfigError, OpError, RetryableError
from sophon.loader.opening import trial
from sophon.loader.sources.assignment import SeedWarning
from sophon.loader.sources.local import LocalTransport
from sophon.pipeline import Pipeline, ops
from tests.support.servers import RECIPE, make_images, serve
from tests.support.torchvision_import import import_torchvision

import_torchvision()

from torchvision import transforms as T  # noqa: E402, N812 - as everybody calls it
from torchvision.transforms import v2  # noqa: E402


class OwnNumpy:
    """Keeps a generator of its own, as many do."""

    def __init__(self):
        self.generator = np.random.default_rng(0)

    def __call__(self, tensor):
        return tensor + float(self.generator.random())


class OwnTorch:
    def __init__(self):
        self.generator = torch.Generator()

    def __call__(self, tensor):
        return tensor + torch.rand(1, generator=self.generator)


class Rarely(OwnNumpy):
    def __call__(self, tensor):
        return super().__call__(tensor) if self.generator.random() < 0.5 else tensor


class OwnBuffer(OwnNumpy):
    """Gives the same array each time, with other contents."""

    buffer = np.zeros(1)

    def __call__(self, _):
        self.buffer[:] = self.generator.random()
        return self.buffer


class Seedable(OwnNumpy):
    def set_random_seed(self, seed):
        self.generator = np.random.default_rng(seed)


class FailsAtTimes(OwnNumpy):
    def __call__(self, tensor):
        if self.generator.random() < 0.5:
            raise ValueError("unlucky")
        return tensor


@dataclass
class Crop:
    tensor: torch.Tensor
    top: float


def _with_python(tensor):
    return tensor + random.random()


def _with_numpy(tensor):
    return tensor + float(np.random.rand())


def _with_torch(tensor):
    return tensor + torch.rand(1)


def _in_place(tensor):
    return tensor.mul_(2)


def _as_dict(tensor):
    return {"image": tensor, "more": [Crop(tensor, random.random()), "text", 1j, {1}]}


def _as_something(_):
    return object()


GOOD = [_with_python, _with_numpy, _with_torch, _in_place, _as_dict, _as_something, Seedable(), lambda tensor: tensor]
BAD = [OwnNumpy, OwnTorch, Rarely, OwnBuffer]


@pytest.mark.parametrize("function", GOOD)
def test_callables_that_depend_on_the_seed_are_left_in_peace(images, function):
    sophon.DataLoader(images, Pipeline([*RECIPE.ops, function]))


@pytest.mark.parametrize("make", BAD)
def test_a_callable_with_a_generator_of_its_own_is_told_of(images, make):
    with pytest.warns(
        SeedWarning, match=rf"^step 5 \(Call\(.*\.{make.__name__}\)\): run twice.*set_random_seed\(seed\)"
    ):
        sophon.DataLoader(images, Pipeline([*RECIPE.ops, make()]))


def test_a_callable_that_fails_in_one_of_two_runs_is_told_of(images):
    with pytest.warns(SeedWarning, match=r"FailsAtTimes"):
        sophon.DataLoader(images, Pipeline([*RECIPE.ops, FailsAtTimes()]))


def test_one_warning_names_all_such_steps_and_no_other(images):
    steps = [_with_numpy, OwnNumpy(), _with_python, OwnTorch(), _in_place]
    with pytest.warns(SeedWarning) as caught:
        sophon.DataLoader(images, Pipeline([*RECIPE.ops, *steps]))
    (warning,) = caught
    assert "OwnNumpy)), step 8 (Call(" in str(warning.message)
    assert str(warning.message).count("step ") == 2


@pytest.mark.parametrize("open_it", [sophon.DataLoader, sophon.RemoteDataset])
def test_the_warning_points_to_the_line_of_the_user(images, open_it):
    with pytest.warns(SeedWarning) as caught:
        open_it(images, Pipeline([*RECIPE.ops, OwnNumpy()]))
    assert caught[0].filename == __file__


def test_a_loader_of_a_data_set_does_not_tell_it_again(images):
    with pytest.warns(SeedWarning):
        dataset = sophon.RemoteDataset(images, Pipeline([*RECIPE.ops, OwnNumpy()]))
    sophon.DataLoader(dataset)


def test_it_is_told_over_a_link_too(server):
    with pytest.warns(SeedWarning, match="OwnNumpy"):
        sophon.DataLoader(server.url, Pipeline([*RECIPE.ops, OwnNumpy()]))


def test_a_callable_sees_the_value_and_the_seed_of_a_run(images):
    seen = []

    def look(tensor):
        seen.append((tensor.numpy().tobytes(), random.random(), torch.rand(1).item()))
        return tensor

    loader = sophon.DataLoader(images, Pipeline([*RECIPE.ops, look]), seed=3)
    tried, seen[:] = seen[:], []
    assert tried[0::2] == tried[1::2]
    assert len(set(tried)) == trial.KEYS
    for _ in range(trial.KEYS):
        next(iter(loader))
    assert seen == tried[0::2]


def test_a_trial_leaves_no_trace(images):
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = [random.random(), np.random.rand(), torch.rand(1).item()]
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    dataset = sophon.RemoteDataset(images, Pipeline([*RECIPE.ops, _with_torch, _with_python, _with_numpy]))
    assert [random.random(), np.random.rand(), torch.rand(1).item()] == before
    assert dataset.stats.to_dict() == type(dataset.stats)().to_dict()
    assert len(dataset.bad_samples) == 0


def _counting():
    counted = torch.zeros(1, dtype=torch.int64).share_memory_()

    def count(tensor):
        counted.add_(1)
        return tensor

    return counted, count


def test_a_slow_callable_is_tried_under_two_keys(images, monkeypatch):
    monkeypatch.setattr(trial, "TRIAL_S", 0.0)
    counted, count = _counting()
    sophon.DataLoader(images, Pipeline([*RECIPE.ops, count]))
    assert counted.item() == 4


class _Inside(IterableDataset):
    """Opens a data set in the worker process."""

    def __init__(self, path, pipeline):
        self.path, self.pipeline = path, pipeline

    def __iter__(self):
        yield len(sophon.RemoteDataset(self.path, self.pipeline))


def test_nothing_is_tried_in_worker_processes_of_torch(images):
    counted, count = _counting()
    loader = TorchDataLoader(_Inside(images, Pipeline([*RECIPE.ops, count])), num_workers=1)
    assert [batch.item() for batch in loader] == [41]
    assert counted.item() == 0


class _Deaf(LocalTransport):
    """Opens, and then gives no sample."""

    def fetch(self, request, timeout_s):  # noqa: ARG002 - part of the contract
        raise RetryableError("nobody is there")


def test_where_no_sample_can_be_had_the_built_in_picture_is_tried(images):
    deaf = _Deaf(sophon.open_store(images), "deaf")
    with pytest.warns(SeedWarning, match="OwnNumpy"):
        sophon.RemoteDataset(deaf, Pipeline([*RECIPE.ops, OwnNumpy()]))
    sophon.RemoteDataset(deaf, Pipeline([ops.Decode(), T.Normalize(0.5, 0.5)]))  # nothing is refused


def test_where_the_sample_cannot_be_decoded_the_built_in_picture_is_tried(tmp_path):
    make_images(tmp_path / "data", 3, classes=0)
    min((tmp_path / "data").iterdir()).write_bytes(b"no picture")
    with pytest.warns(SeedWarning, match="OwnNumpy"):
        sophon.DataLoader(tmp_path / "data", Pipeline([*RECIPE.ops, OwnNumpy()]))


def test_a_callable_that_takes_the_bytes_of_a_file_is_tried_on_a_file(images):
    def read(data):
        assert data == sophon.open_store(images).read(0)
        return np.random.default_rng().random()

    with pytest.warns(SeedWarning, match="step 0 "):
        sophon.DataLoader(images, Pipeline([read]))


def _same(picture):
    return picture


def _raise(_):
    raise ValueError("always")


REFUSED = {
    "a transform of tensors on a picture": (
        [_same, T.Normalize([0.5], [0.5])],
        r"step 2 \(torchvision's Normalize\).*img",
    ),
    "settings that do not fit": (
        [_same, T.ToTensor(), T.Normalize([0.5] * 4, [0.5] * 4)],
        r"step 3 \(torchvision's Normalize\) fails on the first sample .*RuntimeError.*Check its arguments",
    ),
    "of v2": ([_same, v2.ToImage(), v2.Normalize([0.5], [0.5])], r"step 3 \(torchvision's Normalize\).*float"),
}


@pytest.mark.parametrize("recipe", REFUSED)
@pytest.mark.matrix(every=3)
def test_a_transform_that_fails_on_every_picture_is_refused_early(images, recipe):
    steps, message = REFUSED[recipe]
    with pytest.raises(ConfigError, match=message) as caught:
        sophon.DataLoader(images, T.Compose(steps))
    assert isinstance(caught.value.__cause__, OpError)


def test_a_pipeline_of_transforms_without_decode_is_told_what_is_missing(images):
    with pytest.raises(
        ConfigError, match=r"step 0 \(torchvision's CenterCrop\).*sophon\.ops\.Decode\(\) first.*Compose"
    ):
        sophon.DataLoader(images, Pipeline([T.CenterCrop(32), T.ToTensor()]))


def test_it_is_refused_over_a_link_too(images):
    with serve(images) as server, pytest.raises(ConfigError, match="torchvision's Normalize"):
        sophon.DataLoader(server.url, T.Compose([T.RandomResizedCrop(32), _same, T.Normalize([0.5], [0.5])]))


@pytest.mark.parametrize("step", [_raise, T.Lambda(_raise), T.RandomApply([_raise], p=1.0)])
def test_an_error_of_the_users_own_code_is_left_for_when_it_happens(images, step):
    loader = sophon.DataLoader(images, T.Compose([_same, step]))
    with pytest.raises(OpError, match=r"sample 0, op 2 .*ValueError: always"):
        next(iter(loader))


def test_a_crop_that_is_too_large_for_some_pictures_is_not_refused(images):
    loader = sophon.DataLoader(images, T.Compose([_same, T.RandomCrop(500)]))
    with pytest.raises(OpError, match="sample 0, op 2"):
        next(iter(loader))


def test_a_crop_that_is_too_large_for_any_picture_is_refused(images):
    with pytest.raises(ConfigError, match=r"step 2 \(torchvision's RandomCrop\)"):
        sophon.DataLoader(images, T.Compose([_same, T.RandomCrop(100_000)]))


def test_a_transform_that_fails_under_some_keys_is_not_refused(images):
    recipe = T.Compose([_same, T.RandomApply([T.Normalize([0.5], [0.5])], p=0.5)])
    loader = sophon.DataLoader(images, recipe, batch_size=41, collate_fn=_same)
    with pytest.raises(OpError, match="torchvision's RandomApply"):
        list(loader)


def test_a_picture_is_handed_to_each_run_anew(images):
    def darken(picture):
        picture.paste((0, 0, 0), (0, 0, 5, 5))
        return picture

    def check(picture):
        assert isinstance(picture, Image.Image)
        return picture

    loader = sophon.DataLoader(images, Pipeline([ops.Decode(), darken, check]), collate_fn=_same)
    assert next(iter(loader))[0][0].getpixel((2, 2)) == (0, 0, 0)
