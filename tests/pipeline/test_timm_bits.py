"""Given the same parameters our ops give the same bits as timm's transforms, and draw from the same distributions."""

import random

import numpy as np
import pytest

from sophon.errors import OpError
from sophon.pipeline import Key, Pipeline, ops, spec_of
from sophon.pipeline.part import Part
from sophon.pipeline.region import can_crop_early, needed_box
from tests.support.bits import drawn, pictures, same
from tests.support.pictures import scene
from tests.support.samples import agree, draws
from tests.support.timm_import import import_timm_transforms

timm = import_timm_transforms()
from torchvision.transforms import functional as F  # noqa: E402, N812

DRAWS = 4_000
PADDING_MODES = ["constant", "edge", "reflect", "symmetric"]


@pytest.fixture(autouse=True)
def _seed():
    random.seed(20261115)


def test_random_resized_crop_and_interpolation():
    op = ops.RandomResizedCropAndInterpolation((31, 64))
    theirs = timm.RandomResizedCropAndInterpolation((31, 64), interpolation="random")
    assert op.interpolation == tuple(mode.value for mode in theirs.interpolation)
    for picture in pictures()[1:] + pictures("L")[3:5]:
        for box, name in drawn(op, picture):
            theirs.get_params = lambda *_, box=box: box
            theirs.interpolation = timm.str_to_interp_mode(name)
            same(op.apply(picture, (box, name)), theirs(picture))


@pytest.mark.parametrize("size", [(500, 375), (60, 400)])
def test_boxes_and_interpolations_are_distributed_as_timms(size):
    """The same for torchvision's class and timm's: timm's with one interpolation is a plain RandomResizedCrop."""
    picture, transform = scene(*size), timm.RandomResizedCropAndInterpolation(224)
    theirs = np.array([transform.get_params(picture, transform.scale, transform.ratio) for _ in range(DRAWS)])
    both = draws(ops.RandomResizedCropAndInterpolation(224), picture, DRAWS)
    for ours in (np.array([box for box, _ in both]), np.array(draws(ops.RandomResizedCrop(224), picture, DRAWS))):
        for column in range(4):
            agree(ours[:, column], theirs[:, column])
    assert abs(np.mean([name == "bicubic" for _, name in both]) - 0.5) < 0.03


@pytest.mark.parametrize("longest", [0.0, 1.0, 0.3])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.matrix(every=4)
def test_resize_keep_ratio_without_chance(interpolation, longest):
    for size in (32, (50, 70), (224, 224)):
        op, theirs = (
            ops.ResizeKeepRatio(size, longest, interpolation),
            timm.ResizeKeepRatio(size, longest, interpolation),
        )
        assert not op.random
        for picture in pictures()[2:] + pictures("L")[3:5]:
            same(op.apply(picture), theirs(picture))
            same(op.apply(picture, drawn(op, picture, 1)[0]), theirs(picture))


CHANCE = {
    "random_scale_prob": 0.7,
    "random_scale_range": (0.6, 1.4),
    "random_aspect_prob": 0.6,
    "random_aspect_range": (0.7, 1.5),
}


@pytest.mark.parametrize("area", [False, True])
def test_resize_keep_ratio_with_chance(area):
    op = ops.ResizeKeepRatio((60, 90), 0.5, ("bilinear", "bicubic"), random_scale_area=area, **CHANCE)
    assert op.random
    for picture in pictures()[2:]:
        for height, width, name in drawn(op, picture):
            same(
                op.apply(picture, (height, width, name)), F.resize(picture, [height, width], F.InterpolationMode(name))
            )


@pytest.mark.parametrize("area", [False, True])
def test_sizes_are_distributed_as_timms(area):
    picture = scene(500, 375)
    op = ops.ResizeKeepRatio((60, 90), 0.5, ("bilinear", "bicubic"), random_scale_area=area, **CHANCE)
    args = {**CHANCE, "random_scale_area": area}
    theirs = np.array([timm.ResizeKeepRatio.get_params(picture, (60, 90), 0.5, **args) for _ in range(DRAWS)])
    ours = draws(op, picture, DRAWS)
    agree([height for height, _, _ in ours], theirs[:, 0])
    agree([width for _, width, _ in ours], theirs[:, 1])
    agree([height / width for height, width, _ in ours], theirs[:, 0] / theirs[:, 1])
    assert abs(np.mean([name == "bicubic" for *_, name in ours]) - 0.5) < 0.03


def test_the_size_after_a_resize_without_chance_is_known_before():
    op = ops.ResizeKeepRatio((50, 70), 1.0)
    for picture in pictures()[2:]:
        assert op.output(spec_of(picture)) == spec_of(op.apply(picture))


@pytest.mark.parametrize("padding_mode", PADDING_MODES)
@pytest.mark.parametrize("size", [7, (30, 50), (20, 90), 300])
@pytest.mark.matrix(every=4)
def test_center_crop_or_pad(size, padding_mode):
    for picture in pictures()[2:] + pictures("L")[2:5]:
        for fill in (0, 9) if picture.mode == "L" else (0, (1, 2, 255)):
            op, theirs = (kind(size, fill, padding_mode) for kind in (ops.CenterCropOrPad, timm.CenterCropOrPad))
            same(op.apply(picture), theirs(picture))


@pytest.mark.parametrize("padding_mode", PADDING_MODES)
@pytest.mark.parametrize("size", [7, (30, 50), (20, 90), 300])
@pytest.mark.matrix(every=4)
def test_random_crop_or_pad(size, padding_mode):
    op, theirs = ops.RandomCropOrPad(size, 7, padding_mode), timm.RandomCropOrPad(size, 7, padding_mode)
    for picture in pictures()[2:] + pictures("L")[2:5]:
        for place in drawn(op, picture, 4):
            theirs.get_params = lambda *_, place=place: place
            same(op.apply(picture, place), theirs(picture))


@pytest.mark.parametrize("size", [(50, 40), (90, 60), (50, 90), (70, 70)])
def test_places_are_distributed_as_timms(size):
    picture = scene(70, 60)
    ours = np.array(draws(ops.RandomCropOrPad(size), picture, DRAWS))
    theirs = np.array([timm.RandomCropOrPad.get_params(picture, size) for _ in range(DRAWS)])
    agree(ours[:, 0], theirs[:, 0])
    agree(ours[:, 1], theirs[:, 1])


@pytest.mark.parametrize(
    "op", [ops.RandomResizedCropAndInterpolation(24), ops.CenterCropOrPad((30, 20)), ops.RandomCropOrPad((30, 20))]
)
def test_a_part_of_the_picture_is_enough(op):
    pipeline = Pipeline([ops.Decode(), ops.RandomHorizontalFlip(), op])
    assert can_crop_early(pipeline)
    picture = scene(64, 48)
    for epoch in range(10):
        key = Key(1, epoch, 2)
        box = needed_box(pipeline, key, picture.height, picture.width)
        assert box is not None
        top, left, height, width = box
        piece = picture.crop((left, top, left + width, top + height))
        part = Part(piece, top, left, picture.height, picture.width)
        same(pipeline.run(part, key, 1), pipeline.run(picture, key, 1))


@pytest.mark.parametrize("op", [ops.CenterCropOrPad((30, 80)), ops.RandomCropOrPad((30, 80))])
def test_all_of_a_picture_that_is_padded_is_needed(op):
    pipeline = Pipeline([ops.Decode(), op])
    assert needed_box(pipeline, Key(1, 0, 2), 48, 64) is None


def test_a_side_that_vanishes_is_refused():
    op = ops.ResizeKeepRatio(1, 1.0)
    with pytest.raises(OpError, match="would become 1×0"):
        op.apply(scene(50, 2))
