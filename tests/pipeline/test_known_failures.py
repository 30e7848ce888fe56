"""A failure that is known comes with what to do about it, and what is advised works."""

import random

import numpy as np
import pytest
from PIL import Image, ImageOps

from sophon.errors import OpError
from sophon.pipeline import Key, Pipeline, ops
from sophon.pipeline.probe import picture
from tests.support.torchvision_import import import_torchvision

import_torchvision()
augment = pytest.importorskip("timm.data.auto_augment")

INCREASING = "rand-m9-mstd0.5-inc1"


def _refuses_no_bits():
    try:
        ImageOps.posterize(Image.new("RGB", (2, 2)), 0)
    except ValueError:
        return True
    return False


needs_refusal = pytest.mark.skipif(not _refuses_no_bits(), reason="this Pillow makes pictures of 0 bits")


def _errors(pipeline, count):
    value = pipeline.run(picture(), Key(0, 0, 0), 0, 2)
    errors = []
    for epoch in range(count):
        try:
            pipeline.run(value, Key(0, epoch, 0), 2)
        except OpError as error:
            errors.append(error)
    return errors


def _pipeline(policy):
    make = augment.rand_augment_transform if policy.startswith("rand") else augment.auto_augment_transform
    return Pipeline([ops.Decode(), ops.Resize((24, 24)), make(policy, {})])


@needs_refusal
def test_timm_that_asks_for_a_picture_of_no_bits_is_explained():
    errors = _errors(_pipeline(INCREASING), 1500)
    assert errors
    for error in errors:
        assert "timm asks Pillow for a picture of 0 bits" in error.remedy
        assert "timm's RandAugment" in str(error)


@needs_refusal
def test_it_fails_without_us_too():
    small = Image.new("RGB", (24, 24))
    transform = augment.rand_augment_transform(INCREASING, {})
    with pytest.raises(ValueError, match="bits must be between"):  # noqa: PT012 - one of many
        for seed in range(1500):
            random.seed(seed)
            np.random.seed(seed)
            transform(small)


@needs_refusal
@pytest.mark.parametrize("policy", ["rand-m9-mstd0.5-inc1-mmax9", "rand-m3-n4", "original"])
def test_what_is_advised_does_not_fail(policy):
    assert _errors(_pipeline(policy), 1500) == []


@needs_refusal
@pytest.mark.parametrize("policy", ["rand-m2-n4", "v0"])
def test_what_is_advised_against_fails(policy):
    assert any("0 bits" in error.remedy for error in _errors(_pipeline(policy), 1500))


def _posterize(image):
    return ImageOps.posterize(image, 0)


@needs_refusal
def test_the_same_error_of_somebody_else_is_not_explained():
    (error,) = _errors(Pipeline([ops.Decode(), ops.Resize((24, 24)), _posterize]), 1)
    assert "bits must be between" in error.problem
    assert error.remedy == ""
