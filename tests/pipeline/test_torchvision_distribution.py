"""Random parameters are distributed as torchvision's: two-sample tests against the real thing."""

import math

import numpy as np
import pytest

from sophon.pipeline import Key, Rng, ops, spec_of
from tests.support.pictures import scene
from tests.support.torchvision_import import import_torchvision

tv = import_torchvision()
import torch  # noqa: E402

DRAWS = 4_000
SIZES = [(500, 375), (60, 400)]  # the second is so narrow that many boxes miss and the central one is taken


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(20261115)


def _agree(ours, theirs):
    """Two-sample Kolmogorov–Smirnov test at 0.01 %, with ties, which make it stricter than it says."""
    ours, theirs = np.sort(np.asarray(ours, float)), np.sort(np.asarray(theirs, float))
    grid = np.concatenate([ours, theirs])
    gap = np.abs(
        np.searchsorted(ours, grid, "right") / len(ours) - np.searchsorted(theirs, grid, "right") / len(theirs)
    ).max()
    assert gap < 2.23 * math.sqrt((len(ours) + len(theirs)) / (len(ours) * len(theirs))), gap


def _draws(op, value, position=1):
    spec = spec_of(value)
    return [op.draw(Rng(Key(1, 0, sample), position), spec) for sample in range(DRAWS)]


@pytest.mark.parametrize("size", SIZES)
def test_random_resized_crop(size):
    picture = scene(*size)
    ours = np.array(_draws(ops.RandomResizedCrop(224), picture))
    transform = tv.transforms.RandomResizedCrop(224)
    theirs = np.array([transform.get_params(picture, transform.scale, transform.ratio) for _ in range(DRAWS)])
    for column in range(4):
        _agree(ours[:, column], theirs[:, column])
    _agree(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3])
    _agree(ours[:, 3] / ours[:, 2], theirs[:, 3] / theirs[:, 2])


def test_random_crop():
    picture = scene(70, 60)
    ours = np.array(_draws(ops.RandomCrop(32), picture))
    theirs = np.array([tv.transforms.RandomCrop.get_params(picture, (32, 32))[:2] for _ in range(DRAWS)])
    _agree(ours[:, 0], theirs[:, 0])
    _agree(ours[:, 1], theirs[:, 1])


def test_color_jitter():
    op = ops.ColorJitter(0.4, (0.5, 1.2), 0.3, 0.1)
    transform = tv.transforms.ColorJitter(0.4, (0.5, 1.2), 0.3, 0.1)
    ours = _draws(op, scene(8, 8))
    theirs = [
        transform.get_params(*(getattr(transform, n) for n in ("brightness", "contrast", "saturation", "hue")))
        for _ in range(DRAWS)
    ]
    for which in range(4):
        _agree([dict(steps)[which] for steps in ours], [t[1 + which] for t in theirs])
        places = [[step[0] for step in steps].index(which) for steps in ours]
        _agree(places, [t[0].tolist().index(which) for t in theirs])


def test_gaussian_blur():
    _agree(
        _draws(ops.GaussianBlur(5, (0.1, 2.0)), scene(8, 8)),
        [tv.transforms.GaussianBlur.get_params(0.1, 2.0) for _ in range(DRAWS)],
    )


def test_random_rotation():
    _agree(
        _draws(ops.RandomRotation((-30, 50)), scene(8, 8)),
        [tv.transforms.RandomRotation.get_params([-30.0, 50.0]) for _ in range(DRAWS)],
    )


def test_random_affine():
    picture = scene(50, 40)
    ours = _draws(ops.RandomAffine(20, (0.1, 0.3), (0.8, 1.5), (-10, 10, -5, 20)), picture)
    args = ([-20.0, 20.0], [0.1, 0.3], [0.8, 1.5], [-10.0, 10.0, -5.0, 20.0], [50, 40])
    theirs = [tv.transforms.RandomAffine.get_params(*args) for _ in range(DRAWS)]
    _agree([m.angle for m in ours], [t[0] for t in theirs])
    _agree([m.scale for m in ours], [t[2] for t in theirs])
    for axis in (0, 1):
        _agree([m.translate[axis] for m in ours], [t[1][axis] for t in theirs])
        _agree([m.shear[axis] for m in ours], [t[3][axis] for t in theirs])


def test_random_erasing():
    tensor = np.zeros((3, 64, 48), np.float32)
    ours = [p[:4] for p in _draws(ops.RandomErasing(1.0), tensor) if p is not None]
    transform = tv.transforms.RandomErasing(1.0)
    theirs = [
        transform.get_params(torch.from_numpy(tensor), transform.scale, transform.ratio, [0.0])[:4]
        for _ in range(DRAWS)
    ]
    theirs = [t for t in theirs if t[2:] != (64, 48)]  # torchvision's way to say that no rectangle fitted
    assert abs(len(ours) - len(theirs)) < 0.02 * DRAWS
    for column in range(4):
        _agree([p[column] for p in ours], [t[column] for t in theirs])


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize(
    "make",
    [ops.RandomHorizontalFlip, ops.RandomVerticalFlip, ops.RandomGrayscale, ops.RandomInvert, ops.RandomEqualize],
)
def test_chances(make, p):
    share = np.mean(_draws(make(p), scene(4, 4)))
    assert abs(share - p) <= 4 * math.sqrt(p * (1 - p) / DRAWS)


class _Spy:
    """Records what torchvision's augmentations decide, by taking the place of the function that applies them."""

    def __init__(self, monkeypatch):
        self.steps = []
        monkeypatch.setattr(tv.transforms.autoaugment, "_apply_op", self._apply)

    def _apply(self, picture, name, magnitude, **_):
        self.steps.append((name, magnitude))
        return picture


@pytest.mark.parametrize("name", ["RandAugment", "TrivialAugmentWide"])
def test_augmentations(name, monkeypatch):
    spy = _Spy(monkeypatch)
    picture = scene(50, 40)
    transform = getattr(tv.transforms, name)()
    for _ in range(DRAWS):
        transform(picture)
    ours = [step for steps in _draws(getattr(ops, name)(), picture) for step in steps]
    names = sorted({n for n, _ in ours} | {n for n, _ in spy.steps})
    _agree([names.index(n) for n, _ in ours], [names.index(n) for n, _ in spy.steps])
    for each in names:
        _agree([m for n, m in ours if n == each], [m for n, m in spy.steps if n == each])


def test_random_choice_and_apply():
    choices = ops.RandomChoice((ops.Pad(1), ops.Pad(2), ops.Pad(3)), (1.0, 0.0, 3.0))
    counts = np.bincount([which for which, _ in _draws(choices, scene(4, 4))], minlength=3)
    assert counts[1] == 0
    assert abs(counts[2] / DRAWS - 0.75) < 0.03
    applied = [p is not None for p in _draws(ops.RandomApply((ops.RandomInvert(),), 0.8), scene(4, 4))]
    assert abs(np.mean(applied) - 0.8) < 0.03
