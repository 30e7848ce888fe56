"""Random parameters are distributed as torchvision's: two-sample tests against the real thing."""

import math

import numpy as np
import pytest

from sophon.pipeline import ops
from tests.support.pictures import scene
from tests.support.samples import DRAWS, agree, draws
from tests.support.torchvision_import import import_torchvision

tv = import_torchvision()
import torch  # noqa: E402

SIZES = [(500, 375), (60, 400)]  # the second is so narrow that many boxes miss and the central one is taken


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(20261115)


@pytest.mark.parametrize("size", SIZES)
def test_random_resized_crop(size):
    picture = scene(*size)
    ours = np.array(draws(ops.RandomResizedCrop(224), picture))
    transform = tv.transforms.RandomResizedCrop(224)
    theirs = np.array([transform.get_params(picture, transform.scale, transform.ratio) for _ in range(DRAWS)])
    for column in range(4):
        agree(ours[:, column], theirs[:, column])
    agree(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3])
    agree(ours[:, 3] / ours[:, 2], theirs[:, 3] / theirs[:, 2])


def test_random_crop():
    picture = scene(70, 60)
    ours = np.array(draws(ops.RandomCrop(32), picture))
    theirs = np.array([tv.transforms.RandomCrop.get_params(picture, (32, 32))[:2] for _ in range(DRAWS)])
    agree(ours[:, 0], theirs[:, 0])
    agree(ours[:, 1], theirs[:, 1])


def test_color_jitter():
    op = ops.ColorJitter(0.4, (0.5, 1.2), 0.3, 0.1)
    transform = tv.transforms.ColorJitter(0.4, (0.5, 1.2), 0.3, 0.1)
    ours = draws(op, scene(8, 8))
    theirs = [
        transform.get_params(*(getattr(transform, n) for n in ("brightness", "contrast", "saturation", "hue")))
        for _ in range(DRAWS)
    ]
    for which in range(4):
        agree([dict(steps)[which] for steps in ours], [t[1 + which] for t in theirs])
        places = [[step[0] for step in steps].index(which) for steps in ours]
        agree(places, [t[0].tolist().index(which) for t in theirs])


def test_gaussian_blur():
    agree(
        draws(ops.GaussianBlur(5, (0.1, 2.0)), scene(8, 8)),
        [tv.transforms.GaussianBlur.get_params(0.1, 2.0) for _ in range(DRAWS)],
    )


def test_random_rotation():
    agree(
        draws(ops.RandomRotation((-30, 50)), scene(8, 8)),
        [tv.transforms.RandomRotation.get_params([-30.0, 50.0]) for _ in range(DRAWS)],
    )


def test_random_affine():
    picture = scene(50, 40)
    ours = draws(ops.RandomAffine(20, (0.1, 0.3), (0.8, 1.5), (-10, 10, -5, 20)), picture)
    args = ([-20.0, 20.0], [0.1, 0.3], [0.8, 1.5], [-10.0, 10.0, -5.0, 20.0], [50, 40])
    theirs = [tv.transforms.RandomAffine.get_params(*args) for _ in range(DRAWS)]
    agree([m.angle for m in ours], [t[0] for t in theirs])
    agree([m.scale for m in ours], [t[2] for t in theirs])
    for axis in (0, 1):
        agree([m.translate[axis] for m in ours], [t[1][axis] for t in theirs])
        agree([m.shear[axis] for m in ours], [t[3][axis] for t in theirs])


def test_random_erasing():
    tensor = np.zeros((3, 64, 48), np.float32)
    ours = [p[:4] for p in draws(ops.RandomErasing(1.0), tensor) if p is not None]
    transform = tv.transforms.RandomErasing(1.0)
    theirs = [
        transform.get_params(torch.from_numpy(tensor), transform.scale, transform.ratio, [0.0])[:4]
        for _ in range(DRAWS)
    ]
    theirs = [t for t in theirs if t[2:] != (64, 48)]  # torchvision's way to say that no rectangle fitted
    assert abs(len(ours) - len(theirs)) < 0.02 * DRAWS
    for column in range(4):
        agree([p[column] for p in ours], [t[column] for t in theirs])


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize(
    "make",
    [ops.RandomHorizontalFlip, ops.RandomVerticalFlip, ops.RandomGrayscale, ops.RandomInvert, ops.RandomEqualize],
)
def test_chances(make, p):
    share = np.mean(draws(make(p), scene(4, 4)))
    assert abs(share - p) <= 4 * math.sqrt(p * (1 - p) / DRAWS)


class _Spy:
    """Records what torchvision's augmentations decide, by taking the place of the function that applies them."""

    def __init__(self, monkeypatch):
        self.steps = []
        monkeypatch.setattr(tv.transforms.autoaugment, "_apply_op", self._apply)

    def _apply(self, picture, name, magnitude, **_):
        self.steps.append((name, magnitude))
        return picture


@pytest.mark.parametrize("name", ["RandAugment", "TrivialAugmentWide", "AutoAugment"])
@pytest.mark.matrix(every=3)
def test_augmentations(name, monkeypatch):
    spy = _Spy(monkeypatch)
    picture = scene(50, 40)
    transform = getattr(tv.transforms, name)()
    for _ in range(DRAWS):
        transform(picture)
    ours = [step for steps in draws(getattr(ops, name)(), picture) for step in steps]
    names = sorted({n for n, _ in ours} | {n for n, _ in spy.steps})
    agree([names.index(n) for n, _ in ours], [names.index(n) for n, _ in spy.steps])
    for each in names:
        agree([m for n, m in ours if n == each], [m for n, m in spy.steps if n == each])


@pytest.mark.parametrize("policy", ["imagenet", "cifar10", "svhn"])
@pytest.mark.matrix(every=3)
def test_pairs_of_auto_augment(policy, monkeypatch):
    """Which adjustments come together, and how often one of a pair or both are left out."""
    spy = _Spy(monkeypatch)
    picture = scene(50, 40)
    transform = tv.transforms.AutoAugment(tv.transforms.AutoAugmentPolicy(policy))
    theirs = []
    for _ in range(DRAWS):
        spy.steps = []
        transform(picture)
        theirs.append(tuple(name for name, _ in spy.steps))
    ours = [tuple(name for name, _ in steps) for steps in draws(ops.AutoAugment(policy), picture)]
    names = sorted(set(ours) | set(theirs))
    agree([names.index(pair) for pair in ours], [names.index(pair) for pair in theirs])


def test_random_photometric_distort():
    picture = scene(4, 4)
    ours = draws(ops.RandomPhotometricDistort(p=0.3), picture)
    transform = tv.transforms.v2.RandomPhotometricDistort(p=0.3)
    theirs = [transform.make_params([picture]) for _ in range(DRAWS)]
    for which, name in enumerate(("brightness", "contrast", "saturation", "hue")):
        factors = [t[f"{name}_factor"] for t in theirs]
        agree([dict(steps).get(which, -9) for steps, _ in ours], [-9 if f is None else f for f in factors])
    orders = [t["channel_permutation"] for t in theirs]
    code = [-1 if order is None else order[0] * 3 + order[1] for _, order in ours]
    agree(code, [-1 if order is None else int(order[0] * 3 + order[1]) for order in orders])
    both = [places for steps, _ in ours if {1, 3} <= set(places := [which for which, _ in steps])]
    assert abs(np.mean([places.index(1) < places.index(3) for places in both]) - 0.5) < 0.1


def test_random_channel_permutation():
    picture = scene(4, 4)
    transform = tv.transforms.v2.RandomChannelPermutation()
    theirs = [transform.make_params([picture])["permutation"].tolist() for _ in range(DRAWS)]
    ours = draws(ops.RandomChannelPermutation(), picture)
    agree([order[0] * 3 + order[1] for order in ours], [order[0] * 3 + order[1] for order in theirs])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("ScaleJitter", ((120, 300), (0.3, 1.7))),
        ("RandomShortestSize", ((30, 45, 80), 100)),
        ("RandomResize", (20, 29)),
    ],
)
def test_random_sizes(name, args, size):
    picture = scene(*size)
    transform = getattr(tv.transforms.v2, name)(*args)
    theirs = [transform.make_params([picture])["size"] for _ in range(DRAWS)]
    ours = [drawn if isinstance(drawn, tuple) else (drawn,) for drawn in draws(getattr(ops, name)(*args), picture)]
    for side in range(len(theirs[0])):
        agree([drawn[side] for drawn in ours], [t[side] for t in theirs])


def test_random_order():
    """All orders are as likely as torchvision's, and what is done in an order is what torchvision does."""
    op = ops.RandomOrder((ops.Pad(1), ops.Grayscale(3), ops.RandomInvert(1.0)))
    orders = [tuple(index for index, _ in params) for params in draws(op, scene(4, 4))]
    theirs = [tuple(torch.randperm(3).tolist()) for _ in range(DRAWS)]
    agree([order[0] * 3 + order[1] for order in orders], [order[0] * 3 + order[1] for order in theirs])


def test_random_choice_and_apply():
    choices = ops.RandomChoice((ops.Pad(1), ops.Pad(2), ops.Pad(3)), (1.0, 0.0, 3.0))
    counts = np.bincount([which for which, _ in draws(choices, scene(4, 4))], minlength=3)
    assert counts[1] == 0
    assert abs(counts[2] / DRAWS - 0.75) < 0.03
    applied = [p is not None for p in draws(ops.RandomApply((ops.RandomInvert(),), 0.8), scene(4, 4))]
    assert abs(np.mean(applied) - 0.8) < 0.03


@pytest.mark.slow
def test_random_zoom_out():
    from torchvision.transforms import v2

    ours = np.array(draws(ops.RandomZoomOut(0, (1.2, 3.0), 1.0), scene(70, 60)))
    transform = v2.RandomZoomOut(0, (1.2, 3.0), 1.0)
    theirs = np.array([transform.make_params([scene(70, 60)])["padding"] for _ in range(DRAWS)])
    for column in range(4):
        agree(ours[:, column], theirs[:, column])
    agree(ours[:, 0] + ours[:, 2], theirs[:, 0] + theirs[:, 2])


@pytest.mark.parametrize("options", [pytest.param((0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0), marks=pytest.mark.slow), (0.3,)])
@pytest.mark.slow
def test_random_iou_crop(options):
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    from sophon.pipeline import Key, Rng, spec_of

    picture, count = scene(170, 120), 1200
    boxes = [[10.0, 20.0, 60.0, 90.0], [100.0, 5.0, 165.0, 30.0], [70.0, 70.0, 90.0, 80.0]]
    op, transform = ops.RandomIoUCrop(sampler_options=options), v2.RandomIoUCrop(sampler_options=list(options))
    seen = spec_of(picture).with_objects(np.array(boxes))
    ours = [op.draw(Rng(Key(1, 0, number), 3), seen) for number in range(count)]
    named = tv_tensors.BoundingBoxes(torch.tensor(boxes), format="XYXY", canvas_size=(120, 170))
    theirs = [transform.make_params([picture, named]) for _ in range(count)]
    agree([box is None for box in ours], [not params for params in theirs])
    ours = np.array([box for box in ours if box is not None])
    names = ("top", "left", "height", "width")
    theirs = np.array([[params[name] for name in names] for params in theirs if params])
    for column in range(4):
        agree(ours[:, column], theirs[:, column])
    agree(ours[:, 2] / ours[:, 3], theirs[:, 2] / theirs[:, 3])
