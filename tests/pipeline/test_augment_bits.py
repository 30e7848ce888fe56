"""The augmentation policies are torchvision's, v1 and v2, to the bit: tables, magnitudes and pixels."""

import pytest

from sophon.pipeline import ops
from sophon.pipeline.ops.autoaugment import POLICIES
from tests.support.bits import drawn, pictures, same
from tests.support.pictures import scene
from tests.support.torchvision_import import import_torchvision

tv = import_torchvision()
from torchvision.transforms import AutoAugmentPolicy, InterpolationMode, v2  # noqa: E402
from torchvision.transforms.autoaugment import _apply_op  # noqa: E402

SHAPES = ((224, 224), (375, 500), (17, 31))
PLAIN = ("Identity", "AutoContrast", "Equalize", "Invert")


def _spaces(name, bins, height, width):
    """Yield (api, adjustment, bin, magnitude) as torchvision has them; a share that v2 solarizes at as a threshold."""
    args = (bins,) if name == "TrivialAugmentWide" else (bins, (height, width))
    v1 = getattr(tv.transforms, name)()._augmentation_space(*args)
    yield from (("v1", n, i, float(m[i]) if m.ndim else 0.0) for n, (m, _) in v1.items() for i in range(bins))
    for n, (magnitudes_of, _) in getattr(v2, name)._AUGMENTATION_SPACE.items():
        magnitudes = magnitudes_of(bins, height, width)
        for i in range(bins):
            share = 0.0 if magnitudes is None else float(magnitudes[i])
            yield "v2", n, i, 255.0 * share if n == "Solarize" else share


@pytest.mark.parametrize("bins", [2, 10, 31, 50])
def test_rand_augment_magnitudes(bins):
    for shape in SHAPES:
        for api, name, index, expected in _spaces("RandAugment", bins, *shape):
            op = ops.RandAugment(magnitude=index, num_magnitude_bins=bins, api=api)
            assert op.magnitude_of(name, *shape) == expected, (api, name, index)


@pytest.mark.parametrize("bins", [2, 10, 31, 50])
def test_trivial_augment_magnitudes(bins):
    for api, name, index, expected in _spaces("TrivialAugmentWide", bins, 1, 1):
        assert ops.TrivialAugmentWide(bins, api=api).magnitude_of(name, index) == expected, (api, name, index)


def test_auto_augment_magnitudes():
    for shape in SHAPES:
        for api, name, index, expected in _spaces("AutoAugment", 10, *shape):
            assert ops.AutoAugment(api=api).magnitude_of(name, index, *shape) == expected, (api, name, index)


@pytest.mark.parametrize("policy", POLICIES)
def test_auto_augment_policies(policy):
    ours = [list(pair) for pair in POLICIES[policy]]
    for theirs in (
        tv.transforms.AutoAugment(AutoAugmentPolicy(policy)).policies,
        v2.AutoAugment(AutoAugmentPolicy(policy))._policies,
    ):
        assert ours == [list(pair) for pair in theirs]
    for name, _, index in (step for pair in ours for step in pair):
        assert (index is None) == (name in PLAIN)


def _adjusted(picture, api, name, magnitude, interpolation, fill):
    """Return torchvision's result, by the function that its transforms call for each adjustment."""
    if api == "v1":
        return _apply_op(picture, name, magnitude, InterpolationMode(interpolation), fill)
    transform = v2.AutoAugment(interpolation=interpolation, fill=fill)
    share = magnitude / 255.0 if name == "Solarize" else magnitude
    assert name != "Solarize" or 255.0 * share == magnitude
    return transform._apply_image_or_video_transform(picture, name, share, interpolation, transform._fill)


@pytest.mark.parametrize("api", ["v1", "v2"])
@pytest.mark.parametrize("policy", POLICIES)
def test_auto_augment_pixels(policy, api):
    """Every step of every policy, both ways."""
    op = ops.AutoAugment(policy, "bilinear", (10, 20, 30), api)
    picture = pictures()[4]
    for name, _, index in {step for pair in POLICIES[policy] for step in pair}:
        magnitude = op.magnitude_of(name, index or 0, picture.height, picture.width)
        for signed in {magnitude, magnitude if name in ("Posterize", "Solarize", *PLAIN) else -magnitude}:
            theirs = _adjusted(picture, api, name, signed, "bilinear", [10, 20, 30])
            same(op.apply(picture, ((name, signed),)), theirs)


@pytest.mark.parametrize("api", ["v1", "v2"])
@pytest.mark.parametrize("make", [ops.AutoAugment, ops.RandAugment, ops.TrivialAugmentWide])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_whole_draws(mode, make, api):
    op = make(api=api)
    for picture in pictures(mode)[2:]:
        for steps in drawn(op, picture, 8):
            theirs = picture
            for name, magnitude in steps:
                theirs = _adjusted(theirs, api, name, magnitude, "nearest", None)
            same(op.apply(picture, steps), theirs)


def test_v1_and_v2_solarize_at_thresholds_that_differ_by_one_value():
    """Why ops have an `api`: at bin 3 of 10, v1 inverts a value of 170 and v2 does not."""
    thresholds = [ops.AutoAugment(api=api).magnitude_of("Solarize", 3, 1, 1) for api in ("v1", "v2")]
    assert thresholds[0] == 170.0 < thresholds[1]
    flat = scene(4, 4).point([170] * 768)
    results = [ops.AutoAugment().apply(flat, (("Solarize", threshold),)) for threshold in thresholds]
    assert [picture.getpixel((0, 0))[0] for picture in results] == [85, 170]
