"""Given the same parameters our ops give the same bits as torchvision's v2 transforms on PIL images."""

import pytest

from sophon.errors import OpError
from sophon.pipeline import ops
from tests.support.bits import drawn, pictures, same
from tests.support.pictures import scene
from tests.support.torchvision_import import import_torchvision

tv = import_torchvision()
import torch  # noqa: E402
from torchvision.transforms import v2  # noqa: E402
from torchvision.transforms.v2 import functional as F  # noqa: E402, N812

INTERPOLATIONS = ["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"]


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_rgb(mode):
    for picture in pictures(mode):
        same(ops.RGB().apply(picture), v2.RGB()(picture))


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_random_channel_permutation(mode):
    op, theirs = ops.RandomChannelPermutation(), v2.RandomChannelPermutation()
    for picture in pictures(mode):
        for order in drawn(op, picture):
            same(op.apply(picture, order), theirs.transform(picture, {"permutation": torch.tensor(order)}))


def _distortion(steps, order):
    """Return our parameters in the form in which RandomPhotometricDistort passes its own on."""
    factors, places = dict(steps), [which for which, _ in steps]
    names = ("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")
    return {
        **{name: factors.get(which) for which, name in enumerate(names)},
        "contrast_before": places[-1:] != [1],
        "channel_permutation": None if order is None else torch.tensor(order),
    }


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_random_photometric_distort(mode):
    op, theirs = ops.RandomPhotometricDistort(hue=(-0.5, 0.5)), v2.RandomPhotometricDistort()
    for picture in pictures(mode):
        for params in drawn(op, picture, 12):
            same(op.apply(picture, params), theirs.transform(picture, _distortion(*params)))


def test_random_order(monkeypatch):
    op = ops.RandomOrder((ops.Resize(20), ops.Pad(3, 9), ops.Grayscale(3), ops.CenterCrop((30, 25))))
    transforms = [v2.Resize(20), v2.Pad(3, 9), v2.Grayscale(3), v2.CenterCrop((30, 25))]
    for picture in pictures()[2:]:
        for params in drawn(op, picture):
            order = [index for index, _ in params]
            for theirs in (v2.RandomOrder(transforms), tv.transforms.RandomOrder(transforms)):
                monkeypatch.setattr(torch, "randperm", lambda _, order=order: torch.tensor(order))
                monkeypatch.setattr(
                    "random.shuffle", lambda indices, order=order: indices.__setitem__(slice(None), order)
                )
                same(op.apply(picture, params), theirs(picture))


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_scale_jitter(interpolation):
    op, theirs = ops.ScaleJitter((120, 90), (0.3, 1.5), interpolation), v2.ScaleJitter((1, 1), (1, 1), interpolation)
    for picture in pictures()[2:] + pictures("L")[3:5]:
        for size in drawn(op, picture, 3):
            same(op.apply(picture, size), theirs.transform(picture, {"size": size}))


@pytest.mark.parametrize("max_size", [None, 60])
@pytest.mark.parametrize("min_size", [32, 49, 224])
def test_random_shortest_size(min_size, max_size):
    op, theirs = ops.RandomShortestSize(min_size, max_size, "bicubic"), v2.RandomShortestSize(min_size, max_size, 3)
    for picture in pictures()[2:] + pictures("L")[3:5]:
        same(op.apply(picture, drawn(op, picture, 1)[0]), theirs(picture))


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_random_resize(interpolation):
    op, theirs = ops.RandomResize(20, 200, interpolation), v2.RandomResize(20, 200, interpolation)
    for picture in pictures()[2:] + pictures("L")[3:5]:
        for size in drawn(op, picture, 3):
            same(op.apply(picture, size), theirs.transform(picture, {"size": [size]}))


def test_a_scale_that_leaves_nothing_of_a_picture_is_refused_as_torchvision_does():
    op = ops.ScaleJitter((10, 10), (0.01, 0.02))
    with pytest.raises(OpError, match="would become 0×0"):
        op.apply(scene(50, 40), drawn(op, scene(50, 40), 1)[0])
    with pytest.raises(ValueError, match="height and width must be > 0"):
        v2.ScaleJitter((10, 10), (0.01, 0.02))(scene(50, 40))


def test_color_jitter_and_tones_are_the_same_in_v2():
    picture = pictures()[4]
    same(ops.ColorJitter(hue=0.5).apply(picture, ((3, 0.0),)), F.adjust_hue(picture, 0.0))
    same(ops.RandomSolarize(threshold=170.0).apply(picture, True), F.solarize(picture, 170.0))


def test_random_affine_rounds_as_v2_does():
    """Its coefficients differ from those of v1 in the last bit, which shows in a pixel of one picture in ten."""
    picture, mode = scene(41, 31, seed=1), v2.InterpolationMode.BILINEAR
    op = ops.RandomAffine(30, (0.2, 0.3), (0.7, 1.4), (-20, 20, -10, 10), "bilinear", fill=30, api="v2")
    for m in drawn(op, picture, 60):
        moves = m.angle, list(m.translate), m.scale, list(m.shear)
        same(op.apply(picture, m), v2.functional.affine(picture, *moves, interpolation=mode, fill=30))
