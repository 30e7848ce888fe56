"""The boxes that many samples need, found together, against those that are found one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sophon.errors import OpError
from sophon.pipeline import Key, Pipeline, needed_box, ops
from sophon.pipeline.ops.on_tensor import OnTensor
from sophon.pipeline.region import needed_boxes

CROPS = {
    "resized crop": ops.RandomResizedCrop(32),
    "narrow resized crop": ops.RandomResizedCrop(32, scale=(0.9, 1.0), ratio=(3.0, 4.0)),
    "tiny resized crop": ops.RandomResizedCrop(8, scale=(0.0, 0.001)),
    "resized crop of timm's": ops.RandomResizedCropAndInterpolation((32, 48)),
    "crop": ops.RandomCrop(32),
    "crop with a border": ops.RandomCrop(32, padding=4),
    "crop with a border if needed": ops.RandomCrop((40, 24), pad_if_needed=True),
    "centre": ops.CenterCrop((31, 40)),
    "centre of timm's": ops.CenterCropOrPad(33),
    "crop of timm's": ops.RandomCropOrPad(32),
    "views": ops.Views(
        [
            ops.RandomResizedCrop(32),
            [ops.RandomHorizontalFlip(), ops.RandomResizedCrop(8, scale=(0.05, 0.4))],
            [ops.Resize(60), ops.RandomVerticalFlip(), ops.CenterCropOrPad(16)],
        ]
    ),
    "views, one of which needs it all": ops.Views([ops.RandomResizedCrop(32), ops.Resize((4, 4))]),
}
BEFORE = {
    "nothing": [],
    "flip": [ops.RandomHorizontalFlip()],
    "two flips": [ops.RandomVerticalFlip(0.3), ops.RandomHorizontalFlip(1.0)],
    "resize": [ops.Resize(48)],
    "bounded resize": [ops.Resize(40, "bicubic", max_size=61)],
    "resize to a fixed size, and flip": [ops.Resize((50, 70), "lanczos"), ops.RandomHorizontalFlip()],
    "flip, resize, flip": [ops.RandomHorizontalFlip(), ops.Resize(64, "nearest"), ops.RandomVerticalFlip()],
}
SIZES = st.lists(st.tuples(st.integers(1, 400), st.integers(1, 400)), min_size=1, max_size=12)


def _one_by_one(pipeline, seed, epoch, samples, sizes):
    found = []
    for sample, (height, width) in zip(samples, sizes, strict=True):
        box = needed_box(pipeline, Key(seed, epoch, sample), height, width)
        found.append((0, 0, height, width) if box is None else box)
    return found


def _can_run(pipeline, size):
    """Whether a picture of this size is large enough for the pipeline."""
    try:
        needed_box(pipeline, Key(0, 0, 0), *size)
    except (OpError, ZeroDivisionError):
        return False
    return True


def _together(pipeline, seed, epoch, samples, sizes):
    heights, widths = np.array(sizes, np.int64).T
    boxes = needed_boxes(pipeline, seed, epoch, np.array(samples), (heights, widths))
    return [tuple(box) for box in np.stack(boxes, axis=1).tolist()]


@pytest.mark.parametrize("crop", CROPS)
@pytest.mark.parametrize("before", BEFORE)
@settings(max_examples=15, deadline=None)
@given(sizes=SIZES, seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**32))
@pytest.mark.matrix(every=4)
def test_boxes_are_those_that_are_found_one_by_one(before, crop, sizes, seed, epoch):
    pipeline = Pipeline([ops.Decode(), *BEFORE[before], CROPS[crop]])
    samples = range(7, 7 + len(sizes))
    boxes = _together(pipeline, seed, epoch, samples, sizes)  # also with pictures that cannot be cropped among them
    usable = [i for i, size in enumerate(sizes) if _can_run(pipeline, size)]
    given_ = pipeline, seed, epoch, [samples[i] for i in usable], [sizes[i] for i in usable]
    assert [boxes[i] for i in usable] == _one_by_one(*given_)


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(24, 400), st.integers(24, 400)), min_size=1), seed=st.integers(0, 2**64 - 1)
)
def test_steps_on_tensors_need_the_boxes_of_their_geometry(sizes, seed):
    steps = [OnTensor(), OnTensor(ops.Resize(64)), OnTensor(ops.RandomHorizontalFlip()), OnTensor(ops.RandomCrop(24))]
    given_ = Pipeline([ops.Decode(), *steps]), seed, 1, range(len(sizes)), sizes
    assert _together(*given_) == _one_by_one(*given_)


@pytest.mark.parametrize("steps", [[ops.Resize(32)], [ops.GaussianBlur(3), ops.CenterCrop(8)], [ops.ToTensor()]])
def test_without_a_crop_that_shows_all_of_a_picture_is_needed(steps):
    given_ = Pipeline([ops.Decode(), *steps]), 0, 1, range(3), [(40, 50), (8, 9), (100, 1)]
    assert _together(*given_) == _one_by_one(*given_) == [(0, 0, 40, 50), (0, 0, 8, 9), (0, 0, 100, 1)]


def test_an_op_that_draws_a_size_is_asked_one_by_one():
    pipeline = Pipeline([ops.Decode(), ops.RandomShortestSize(40), ops.RandomCrop(8)])
    assert needed_boxes(pipeline, 0, 1, np.arange(2), (np.array([50, 60]), np.array([50, 60]))) is None


def test_among_many_photos_not_one_box_is_off():
    """Rare ways through a crop's ten tries, on as many photos as take a second or two."""
    rng = np.random.default_rng(1)
    sizes = np.exp(rng.normal(np.log((375, 500)), 0.4, (20_000, 2))).astype(int).tolist()
    pipeline = Pipeline([ops.Decode(), ops.RandomResizedCrop(224), ops.ToTensor()])
    given_ = pipeline, 5, 3, range(len(sizes)), sizes
    assert _together(*given_) == _one_by_one(*given_)
