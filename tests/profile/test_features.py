"""What is known of samples beforehand: the pixels that a coming epoch needs of them."""

import time

import numpy as np
import pytest

from sophon.pipeline import Key, Pipeline, needed_box, ops
from sophon.profile.features import areas_needed, rows
from sophon.profile.kinds import KINDS

RECIPES = {
    "resized crop": Pipeline([ops.Decode(), ops.RandomResizedCrop(224), ops.RandomHorizontalFlip(), ops.ToTensor()]),
    "evaluation": Pipeline([ops.Decode(), ops.Resize(256), ops.CenterCrop(224), ops.ToTensor()]),
    "drawn sizes": Pipeline([ops.Decode(), ops.RandomShortestSize((256, 480)), ops.RandomCrop(224), ops.ToTensor()]),
    "no crop": Pipeline([ops.Decode(), ops.Resize((32, 32)), ops.ToTensor()]),
    "no picture": Pipeline([lambda data: np.float32(len(data))]),
}


def _one_by_one(pipeline, seed, epochs, samples, sizes):
    """What areas were worked out by before: a loop over samples."""
    areas = np.zeros(len(samples), np.float32)
    for i, (epoch, sample, (height, width)) in enumerate(zip(epochs, samples, sizes.tolist(), strict=True)):
        if height and width:
            box = needed_box(pipeline, Key(seed, int(epoch), int(sample)), height, width)
            areas[i] = height * width if box is None else box[2] * box[3]
    return areas


def _sizes(count):
    rng = np.random.default_rng(count)
    sizes = np.exp(rng.normal(np.log((375, 500)), 0.3, (count, 2))).astype(np.int32)
    sizes[rng.random(count) < 0.1] = 0
    return sizes


@pytest.mark.parametrize("recipe", RECIPES)
def test_areas_are_those_of_a_loop_over_samples(recipe):
    pipeline, sizes, samples = RECIPES[recipe], _sizes(3000), np.arange(3000)
    found = areas_needed(pipeline, 7, 2, samples, sizes)
    assert found.dtype == np.float32
    assert (found == _one_by_one(pipeline, 7, [2] * 3000, samples, sizes)).all()


def test_records_of_several_epochs_have_the_areas_of_their_own():
    pipeline, sizes = RECIPES["resized crop"], _sizes(500)
    epochs, samples = np.arange(500) % 7, np.arange(500)[::-1].copy()
    found = areas_needed(pipeline, 7, epochs, samples, sizes)
    assert (found == _one_by_one(pipeline, 7, epochs, samples, sizes)).all()


def test_a_picture_that_is_too_small_for_a_crop_does_not_spoil_the_plan():
    pipeline = Pipeline([ops.Decode(), ops.RandomShortestSize((20, 40)), ops.RandomCrop(30)])
    sizes = np.full((60, 2), 25, np.int32)  # too small in some epochs and not in others
    assert set(areas_needed(pipeline, 0, 1, np.arange(60), sizes)) >= {625.0}


def test_many_samples_are_worked_out_together_and_not_one_by_one():
    pipeline, sizes, samples = RECIPES["resized crop"], _sizes(40_000), np.arange(40_000)

    def spent(run):
        start_s = time.thread_time()
        run()
        return time.thread_time() - start_s

    together_s = min(spent(lambda: areas_needed(pipeline, 1, 1, samples, sizes)) for _ in range(3))
    few = slice(0, 4000)
    loop_s = 10 * min(spent(lambda: _one_by_one(pipeline, 1, [1] * 4000, samples[few], sizes[few])) for _ in range(3))
    assert together_s < loop_s / 5  # about a twentieth


def test_what_is_not_known_of_a_sample_is_what_the_others_are_like():
    sizes = np.array([[100, 200], [100, 200], [0, 0]], np.int32)
    areas = np.array([5e3, 5e3, 0], np.float32)
    found = np.exp(rows(KINDS["picture"], np.array([1e4, 1e4, 0], np.float32), sizes, areas))
    assert found[2] == pytest.approx(found[0])


def test_of_what_is_no_picture_only_the_file_counts():
    sizes, areas = np.zeros((3, 2), np.int32), np.zeros(3, np.float32)
    found = np.exp(rows(KINDS["bytes"], np.array([1e4, 2e4, 4e4], np.float32), sizes, areas))
    assert found[:, 0].tolist() == pytest.approx([1e4, 2e4, 4e4])
    assert found.shape == (3, len(KINDS["bytes"].features))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_is_believed_of_a_kind_has_a_slope_for_each_feature(kind):
    assert {len(slopes) for slopes in kind.priors.values()} == {len(kind.features)}
