"""Ops on volumes: against scipy and NumPy, and of a part the bits of the whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from sophon.errors import ConfigError, OpError
from sophon.pipeline import Key, Pipeline, Rng, ops
from sophon.pipeline.ops.volumes import foreground
from sophon.pipeline.part import Signal
from sophon.pipeline.probe import digests
from sophon.pipeline.spec import spec_of
from tests.support.volumes import DECODE, MLPERF, RECIPE, sample

KEYS = st.builds(Key, st.integers(0, 9), st.integers(0, 99), st.integers(0, 99))


def volume(shape=(11, 9, 14), seed=0, spacing=(2.0, 1.0, 0.7), objects=None):
    rng = np.random.default_rng(seed)
    image = rng.normal(size=(1, *shape)).astype(np.float32)
    label = rng.integers(0, 3, (1, *shape)).astype(np.uint8)
    return Signal(image, "volume", spacing, label=label, objects=objects)


@given(st.tuples(*[st.integers(1, 14)] * 3), st.tuples(*[st.floats(0.3, 4.0)] * 3), st.integers(0, 9))
@settings(deadline=None, max_examples=60)
def test_resampling_is_scipys_interpolation_within_a_millionth_and_its_nearest_voxel(shape, spacing, seed):
    value = volume(shape, seed)
    made = ops.ResampleVolume(spacing).apply(value)
    sizes = [max(int(np.floor(n * a / b + 0.5)), 1) for n, a, b in zip(shape, value.scale, spacing, strict=True)]
    assert made.array.shape == (1, *sizes) == made.label.shape
    assert made.scale == spacing
    at = [np.arange(m) * (n - 1) / max(m - 1, 1) for n, m in zip(shape, sizes, strict=True)]
    grid = np.stack(np.meshgrid(*at, indexing="ij"))
    expected = ndimage.map_coordinates(value.array[0].astype(np.float64), grid, order=1, mode="nearest")
    np.testing.assert_allclose(made.array[0], expected, atol=1e-6, rtol=1e-5)
    nearest = [np.minimum(np.floor(a + 0.5), n - 1).astype(int) for a, n in zip(at, shape, strict=True)]
    halves = [np.floor(a) + (a - np.floor(a) >= 0.5) for a in at]
    assert all(np.array_equal(one, other) for one, other in zip(nearest, halves, strict=True))
    assert np.array_equal(made.label[0], value.label[0][np.ix_(*nearest)])


@given(KEYS, st.tuples(*[st.integers(1, 12)] * 3), st.sampled_from([0.0, 0.5, 1.0]))
@settings(deadline=None, max_examples=100)
def test_crops_lie_inside_and_hold_what_they_were_drawn_for(key, size, oversampling):
    boxes = np.array([[1, 2, 3, 4, 5, 5, 6], [2, 0, 0, 0, 11, 9, 14], [2, 8, 7, 12, 11, 9, 14]], np.float64)
    value = volume(objects=boxes)
    crop = ops.RandomBalancedCrop(size, oversampling)
    starts = crop.draw(Rng(key, 3), spec_of(value))
    made = crop.apply(value, starts)
    assert made.array.shape == made.label.shape == (1, *size)
    for at, side, whole in zip(starts, size, (11, 9, 14), strict=True):
        assert 0 <= at <= whole - side if side <= whole else at == -((side - whole) // 2)
    inside = [(max(at, 0), min(at + side, n)) for at, side, n in zip(starts, size, (11, 9, 14), strict=True)]
    piece = value.array[0][tuple(slice(*pair) for pair in inside)]
    offset = [max(-at, 0) for at in starts]
    there = tuple(slice(o, o + n) for o, n in zip(offset, piece.shape, strict=True))
    assert np.array_equal(made.array[0][there], piece)
    assert made.array.sum() == pytest.approx(piece.sum(), abs=1e-3)
    if oversampling == 1.0:  # some piece is held, as far as it can be

        def is_held(box):
            sides = zip(inside, box[1:4], box[4:7], size, strict=True)
            return all(
                (low <= a and b <= high) or (b - a > side and a <= low and high <= b) or high - low < side
                for (low, high), a, b, side in sides
            )

        assert any(map(is_held, boxes))


def test_four_crops_in_ten_are_drawn_for_the_foreground_and_every_class_has_its_share():
    boxes = np.array([[1, 0, 0, 0, 2, 2, 2], [2, 90, 90, 90, 100, 100, 100], [2, 40, 40, 40, 41, 41, 41]], np.float64)
    spec = spec_of(Signal(np.zeros((1, 100, 100, 100), np.float32), "volume", (1.0,) * 3, objects=boxes))
    crop = ops.RandomBalancedCrop((10, 10, 10), 0.4)
    drawn = [crop.draw(Rng(Key(0, 0, n), 1), spec) for n in range(4000)]
    first = sum(starts == (0, 0, 0) for starts in drawn) / len(drawn)
    assert 0.17 < first < 0.23  # half of the foreground's share; where else (0, 0, 0) is drawn is one in 753,571
    assert 0.08 < sum(starts == (90, 90, 90) for starts in drawn) / len(drawn) < 0.12


def test_flips_brightness_noise_casts_and_normalising_are_what_numpy_says():
    value = volume()
    flipped = ops.RandomFlipVolume().apply(value, (True, False, True))
    assert np.array_equal(flipped.array, value.array[:, ::-1, :, ::-1])
    assert np.array_equal(flipped.label, value.label[:, ::-1, :, ::-1])
    normal = ops.NormalizeVolume(-1.0, 1.0, 0.5, 2.0).apply(value)
    np.testing.assert_allclose(normal.array, (np.clip(value.array, -1, 1) - 0.5) / 2.0, rtol=1e-6)
    assert normal.label is value.label
    noise = ops.RandomNoiseVolume(mean=3.0, std=0.1, p=1.0)
    params = noise.draw(Rng(Key(0, 0, 0), 0), spec_of(volume((40, 40, 40))))
    assert params.shape == (1, 40, 40, 40)
    assert abs(float(params.mean()) - 3.0) < 0.01
    assert 0 < float(params.std()) <= 0.11
    assert ops.RandomNoiseVolume(p=0.0).draw(Rng(Key(0, 0, 0), 0), spec_of(value)) is None
    factor = ops.RandomBrightnessVolume(0.3, 1.0).draw(Rng(Key(0, 0, 1), 0), spec_of(value))
    assert 0.7 <= factor <= 1.3
    cast = ops.CastVolume("int16", "int32").apply(Signal(value.array * 1e6, "volume", label=value.label))
    assert (cast.array.dtype, cast.label.dtype) == (np.int16, np.int32)
    assert (cast.array.min(), cast.array.max()) == (-32768, 32767)


def test_recipes_that_cannot_work_are_refused():
    with pytest.raises(ConfigError, match="float32"):
        Pipeline([DECODE, ops.CastVolume("int16"), ops.ResampleVolume(1.0)])
    with pytest.raises(ConfigError, match="takes a"):
        Pipeline([ops.Decode(), ops.RandomFlipVolume()])
    with pytest.raises(ConfigError, match="takes an image"):
        Pipeline([DECODE, ops.RandomCrop(3)])
    for wrong in (
        lambda: ops.RandomBalancedCrop((1, 2)),
        lambda: ops.RandomBalancedCrop(0),
        lambda: ops.NormalizeVolume(5, 5),
        lambda: ops.ResampleVolume((0, 1, 1)),
        lambda: ops.DecodeVolume(foreground="x"),
        lambda: ops.CastVolume("complex64"),
    ):
        with pytest.raises(ConfigError):
            wrong()


def test_a_recipe_survives_json_and_knows_its_fields():
    again = Pipeline.from_json(RECIPE.to_json())
    assert again == RECIPE
    assert again.fingerprint == RECIPE.fingerprint
    assert RECIPE.fields == (("label", "volume"), ("foreground", "foreground"))
    assert RECIPE.max_cut == len(MLPERF) == len(digests(RECIPE))


def test_the_bits_of_a_recipe_stay_what_they_are():
    # Portable arithmetic: these must be the same on every machine. A change needs new versions of ops.
    assert digests(RECIPE)[-1] == BITS


BITS = "e01dea4a75660b44"


def test_the_foreground_is_found_by_class_and_two_pieces_of_each_are_kept():
    label = np.zeros((1, 20, 20, 20), np.uint8)
    label[0, 1:3, 1:3, 1:3] = 1
    label[0, 5:9, 5:9, 5:9] = 1
    label[0, 12:18, 12:14, 12:14] = 1
    label[0, 0, 0, 19] = 7
    boxes = foreground.found_in(label)
    assert sorted(boxes) == [[1, 5, 5, 5, 9, 9, 9], [1, 12, 12, 12, 18, 14, 14], [7, 0, 0, 19, 1, 1, 20]]
    assert foreground.found_in(np.zeros((1, 3, 3, 3), np.uint8)) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format": 1, "sizes": [9, 9, 9], "label_bytes": 5, "boxes": [[1, 0, 0, 0, 10, 9, 9]]}',
        b'{"format": 1, "sizes": [9, 9, 9], "label_bytes": 5, "boxes": [[0, 0, 0, 0, 1, 1, 1]]}',
        b'{"format": 1, "sizes": [9, 9, 9], "label_bytes": 5, "boxes": [[1, 0, 0, 0, 1e400, 1, 1]]}',
        b'{"format": 1, "sizes": [9, 9, 9], "label_bytes": 6, "boxes": []}',
        b'{"format": 1, "sizes": [9, 9, 8], "label_bytes": 5, "boxes": []}',
        b'{"format": 2, "sizes": [9, 9, 9], "label_bytes": 5, "boxes": []}',
        b"[" * 60_000,
    ],
)
def test_an_index_that_is_damaged_or_of_another_label_is_refused(data):
    with pytest.raises(OpError, match="foreground index"):
        foreground.from_bytes(data, (9, 9, 9), 5)


def test_a_label_of_another_size_than_its_image_is_named():
    data, _ = sample("nii")
    other, _ = sample("nii", slices=22)
    from sophon.bundle import pack, unpack

    mixed = pack([unpack(data, 3)[0], unpack(other, 3)[1], unpack(other, 3)[2]])
    with pytest.raises(OpError, match=r"field 'label': the label has 22×40×40 voxels, but its image has 20×40×40"):
        DECODE.apply(mixed)
