"""Ops that detectors are trained with: what they draw by, what they need of a picture, and where objects go."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sophon.errors import OpError
from sophon.pipeline import Key, Part, Pipeline, Rng, needed_box, ops, spec_of
from sophon.pipeline.spec import image
from tests.support.pictures import encode, scene

BOXES = np.array([[5.0, 4.0, 31.5, 40.0], [20.0, 10.0, 60.0, 30.0]])


def seen(width=64, height=48, objects=BOXES):
    return image(height, width, 3).with_objects(objects)


def test_a_crop_by_boxes_needs_boxes():
    pipeline = Pipeline([ops.Decode(), ops.RandomIoUCrop()])
    with pytest.raises(OpError, match=r"op 1 \(RandomIoUCrop\): it needs the sample's boxes.*sophon.Joint"):
        pipeline.run(encode(scene(64, 48), "png"), Key(0, 0, 0))


def test_a_picture_without_objects_stays_as_it_is_or_is_refused():
    nothing = seen(objects=np.zeros((0, 4)))
    assert ops.RandomIoUCrop().draw(Rng(Key(0, 0, 0), 1), nothing) is None
    with pytest.raises(OpError, match=r"keeps one of 0 boxes.*1\.0 to sampler_options"):  # torchvision never returns
        ops.RandomIoUCrop(sampler_options=(0.5,)).draw(Rng(Key(0, 0, 0), 1), nothing)


def test_an_overlap_that_no_crop_has_ends():
    point = seen(objects=np.array([[5.0, 5.0, 5.0, 5.0]]))
    with pytest.raises(OpError, match="keeps one of 1 boxes"):
        ops.RandomIoUCrop(sampler_options=(0.9,)).draw(Rng(Key(0, 0, 0), 1), point)
    assert ops.RandomIoUCrop(sampler_options=(0.9, 1.0)).draw(Rng(Key(0, 0, 0), 1), point) is None


def test_without_a_field_of_boxes_nothing_is_cut_at_a_crop_by_boxes_or_after_it():
    steps = [ops.Decode(), ops.RandomHorizontalFlip(), ops.RandomIoUCrop(), ops.ToTensor()]
    for fields, most in (
        ([], 2),
        ([("mask", "mask")], 2),
        ([("boxes", "boxes:xyxy")], 4),
        ([("one", "boxes:xyxy"), ("two", "boxes:xywh")], 2),  # which of them?
    ):
        pipeline = Pipeline(steps, fields)
        assert (pipeline.max_cut, pipeline.portable) == (most, 4)


def test_a_picture_of_another_size_than_its_boxes_are_for_is_refused():
    pipeline = Pipeline([ops.Decode(), ops.RandomIoUCrop()])
    with pytest.raises(OpError, match="a picture of 64×48 pixels; expected 48×64"):
        pipeline.run(encode(scene(64, 48), "png"), Key(0, 0, 0, seen(48, 64)))


_side = st.integers(2, 60)
STEPS = {
    "zoom": ops.RandomZoomOut(9, (1.0, 2.5), 0.7),
    "flip": ops.RandomHorizontalFlip(),
    "distort": ops.RandomPhotometricDistort(p=0.3),
}


@settings(max_examples=200, deadline=None)
@given(
    st.tuples(_side, _side),
    st.lists(st.sampled_from(sorted(STEPS)), max_size=3),
    st.integers(0, 500),
    st.sampled_from([ops.RandomIoUCrop(), ops.RandomResizedCrop(9)]),
)
def test_the_part_that_is_named_is_all_that_a_crop_needs(size, names, epoch, crop):
    picture = scene(*size, seed=epoch % 5)
    objects = np.array([[0.2, 0.1, 0.6, 0.9], [0.5, 0.4, 1.0, 0.5]]) * (*size, *size)
    pipeline = Pipeline([ops.Decode(), *(STEPS[name] for name in names), crop])
    key = Key(3, epoch, 7, spec_of(picture).with_objects(objects))
    box = needed_box(pipeline, key, picture.height, picture.width)
    if box is None:
        return
    whole = pipeline.run(picture, key, 1)
    top, left, height, width = box
    part = Part(picture.crop((left, top, left + width, top + height)), top, left, picture.height, picture.width)
    found = pipeline.run(part, key, 1)
    assert found.size == whole.size
    assert found.tobytes() == whole.tobytes()


def test_a_window_of_a_zoomed_picture_is_small():
    pipeline = Pipeline([ops.Decode(), ops.RandomZoomOut(0, (2.0, 2.0), 1.0), ops.RandomIoUCrop(max_scale=0.4)])
    shares = []
    for epoch in range(60):
        box = needed_box(pipeline, Key(0, epoch, 0, seen()), 48, 64)
        shares.append(1.0 if box is None else box[2] * box[3] / (48 * 64))
    assert 0.0 < np.mean(shares) < 0.7
