"""What a callable is given: what torchvision would give it, wherever it stands."""

import functools
import io

import numpy as np
import pytest
from PIL import Image

from sophon.pipeline import Key, Pipeline, ops
from tests.support.pictures import encode, scene
from tests.support.torchvision_import import import_torchvision

import_torchvision()
import torch  # noqa: E402
from torchvision import transforms as T  # noqa: E402, N812

DATA = encode(scene(60, 40), "jpeg 4:2:0")
KEY = Key(0, 0, 0)


def _of_folder() -> Image.Image:
    """Return what torchvision's ImageFolder loads."""
    return Image.open(io.BytesIO(DATA)).convert("RGB")


@pytest.mark.parametrize(
    "steps",
    [
        [np.array, lambda array: array[:, ::-1].copy(), T.ToTensor()],
        [np.array, lambda array: array[::-1], np.ascontiguousarray, T.ToPILImage(), T.ToTensor()],
        [T.ToTensor(), lambda tensor: tensor.numpy(), lambda array: array.astype(np.float64), torch.from_numpy],
    ],
    ids=["rows", "upside down", "from a tensor"],
)
def test_an_array_that_a_callable_gives_is_an_array_to_the_next_one(steps):
    recipe = T.Compose([T.CenterCrop(30), *steps])
    found, expected = Pipeline.from_torchvision(recipe).run(DATA, KEY), recipe(_of_folder())
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def test_an_array_that_an_op_gives_is_a_tensor_to_a_callable():
    pipeline = Pipeline([ops.Decode(), ops.ToTensor(), torch.clone, ops.Normalize((0.5,), (0.5,)), torch.clone])
    expected = T.Compose([T.ToTensor(), T.Normalize((0.5,), (0.5,))])(_of_folder())
    assert torch.equal(pipeline.run(DATA, KEY), expected)


def _hooked(step: torch.nn.Module) -> torch.nn.Module:
    step.register_forward_hook(lambda _module, _given, result: result.transpose(Image.Transpose.ROTATE_90))
    return step


def _hooked_before(step: torch.nn.Module) -> torch.nn.Module:
    step.register_forward_pre_hook(lambda _module, given: (given[0].transpose(Image.Transpose.ROTATE_90),))
    return step


def _with_method(step: torch.nn.Module, name: str, method: object) -> torch.nn.Module:
    setattr(step, name, method)
    return step


@pytest.mark.parametrize(
    "step",
    [
        _hooked(T.CenterCrop(30)),
        _hooked_before(torch.nn.Sequential(T.CenterCrop(30))),
        T.RandomApply([_hooked(T.CenterCrop(30))], 1.0),
        _with_method(T.CenterCrop(30), "forward", lambda picture: picture.crop((0, 0, 30, 30))),
        _with_method(T.RandomRotation((0, 0)), "get_params", lambda _degrees: 45.0),
    ],
    ids=["hook", "hook before", "inside", "forward", "get_params"],
)
def test_a_transform_that_was_altered_is_run_as_it_is(step):
    recipe = T.Compose([step, T.ToTensor()])
    assert torch.equal(Pipeline.from_torchvision(recipe).run(DATA, KEY), recipe(_of_folder()))


def test_a_method_that_was_wrapped_is_run_as_it_is(monkeypatch):
    plain = T.RandomCrop.get_params

    @functools.wraps(plain)  # which says that it is torchvision's
    def moved(picture, size):
        return (3, 5, *size)

    monkeypatch.setattr(T.RandomCrop, "get_params", staticmethod(moved))
    recipe = T.Compose([T.RandomCrop(30), T.ToTensor()])
    assert torch.equal(Pipeline.from_torchvision(recipe).run(DATA, KEY), recipe(_of_folder()))


def test_a_transform_whose_class_was_altered_is_run_as_it_is(monkeypatch):
    monkeypatch.setattr(T.RandomCrop, "get_params", staticmethod(lambda _picture, size: (3, 5, *size)))
    recipe = T.Compose([T.RandomCrop(30), T.ToTensor()])
    assert torch.equal(Pipeline.from_torchvision(recipe).run(DATA, KEY), recipe(_of_folder()))
