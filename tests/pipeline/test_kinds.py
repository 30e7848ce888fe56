"""An op that meets a value of a kind that it does not take raises; it never hands the value on."""

import numpy as np
import pytest

from sophon.errors import OpError
from sophon.pipeline import OPS, Key, Rng, ops, spec_of
from sophon.pipeline.part import Part
from sophon.pipeline.spec import Kind
from tests.support.pictures import scene

PICTURE = scene(40, 30)
TENSOR = ops.ToTensor().apply(PICTURE)
OTHERS = [TENSOR, np.asarray(PICTURE), "a picture", None, [PICTURE], memoryview(b"picture")]

# Settings with which there is nothing to do for a picture, so that handing it on is what an op might do; then others.
ON_PICTURES = [
    ops.Pad(0),
    ops.ColorJitter(),
    ops.RandAugment(0),
    ops.TrivialAugmentWide(),
    ops.AutoAugment(),
    ops.CenterCrop((30, 40)),
    ops.CenterCropOrPad((30, 40)),
    ops.RandomCrop((30, 40)),
    ops.RandomCropOrPad((30, 40)),
    ops.RandomResizedCrop((30, 40), (1.0, 1.0), (4 / 3, 4 / 3)),
    ops.RandomResizedCropAndInterpolation((30, 40), (1.0, 1.0), (4 / 3, 4 / 3)),
    ops.Resize((30, 40)),
    ops.RandomResize(30, 31),
    ops.RandomShortestSize(30),
    ops.ScaleJitter((40, 30), (1.0, 1.0)),
    ops.ResizeKeepRatio((30, 40)),
    ops.RandomIoUCrop(sampler_options=(1.0,)),
    ops.RandomIoUCrop(sampler_options=(0.0,)),
    ops.RandomZoomOut(p=0.0),
    ops.RandomZoomOut(p=1.0),
    ops.RGB(),
    ops.RandomChannelPermutation(),
    ops.RandomPhotometricDistort(p=0.0),
    ops.RandomHorizontalFlip(1.0),
    ops.RandomVerticalFlip(1.0),
    ops.Grayscale(3),
    ops.RandomGrayscale(1.0),
    ops.GaussianBlur(1),
    ops.RandomRotation(0),
    ops.RandomAffine(0),
    ops.RandomInvert(1.0),
    ops.RandomPosterize(1.0, 8),
    ops.RandomSolarize(1.0, 256),
    ops.RandomAdjustSharpness(1.0, 1.0),
    ops.RandomAutocontrast(1.0),
    ops.RandomEqualize(1.0),
    ops.PILToTensor(),
    ops.ToTensor(),
]
ON_TENSORS = [ops.RandomErasing(0.0), ops.RandomErasing(1.0), ops.ToFloat(), ops.Normalize((0.5,), (0.5,))]


def test_every_op_on_pictures_or_tensors_is_tried():
    tried = {op.name() for op in ON_PICTURES + ON_TENSORS}
    of_sounds = {"TimeMask", "FrequencyMask"}  # of spectrograms: tests/pipeline/audio
    taking = {name for name, op in OPS.items() if getattr(op, "takes", None) in (Kind.IMAGE, Kind.TENSOR)}
    assert tried == taking - of_sounds


@pytest.mark.parametrize("op", ON_PICTURES, ids=lambda op: op.name())
def test_ops_on_pictures_refuse_anything_else(op):
    params = op.draw(Rng(Key(0, 0, 0), 0), spec_of(PICTURE).with_objects(np.array([[2.0, 3.0, 35.0, 24.0]])))
    op.apply(PICTURE, params)
    for other in OTHERS:
        with pytest.raises(OpError):
            op.apply(other, params)


@pytest.mark.parametrize("op", ON_PICTURES, ids=lambda op: op.name())
def test_ops_that_do_not_know_parts_refuse_them(op):
    part = Part(PICTURE.crop((1, 1, 9, 9)), 1, 1, 30, 40)
    if not op.crops and not op.passes:
        with pytest.raises(OpError):
            op.apply(part, op.draw(Rng(Key(0, 0, 0), 0), spec_of(part)))


@pytest.mark.parametrize("op", ON_TENSORS, ids=lambda op: op.name())
def test_ops_on_tensors_refuse_anything_else(op):
    params = op.draw(Rng(Key(0, 0, 0), 0), spec_of(TENSOR))
    op.apply(TENSOR, params)
    for other in (PICTURE, PICTURE.convert("L"), b"tensor", None, TENSOR.tolist()):
        with pytest.raises(OpError, match=f"{op.name()} takes a tensor"):
            op.apply(other, params)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int16", "bool"])
@pytest.mark.parametrize("op", [ops.ToFloat(), ops.Normalize((0.5,), (0.5,))])
def test_numbers_of_another_width_are_not_converted_without_a_word(op, dtype):
    with pytest.raises(OpError, match=f"takes a tensor of .*float32, got .*{dtype}"):
        op.apply(TENSOR.astype(dtype), None)


def test_a_flip_does_not_hand_on_a_tensor():
    with pytest.raises(OpError, match=r"RandomHorizontalFlip takes a picture, got tensor\[3×30×40\] float32"):
        ops.RandomHorizontalFlip().apply(TENSOR, True)
