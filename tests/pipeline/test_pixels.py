"""The optional extension gives the bits of Pillow and NumPy, or is not used."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sophon.pipeline import Key, Pipeline, fuse, ops, pixels
from tests.support.pictures import encode, scene

BILINEAR = Image.Resampling.BILINEAR
needs_kernel = pytest.mark.skipif(pixels.pillows_rule() is None, reason="the extension was not built, or is not used")


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return a picture in which every rounding shows."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


@needs_kernel
@given(
    st.tuples(st.integers(1, 150), st.integers(1, 150)),
    st.tuples(*[st.floats(0, 1)] * 4),
    st.tuples(st.integers(1, 120), st.integers(1, 120)),
    st.integers(0, 99),
)
@settings(max_examples=400, deadline=None)
def test_any_box_is_resized_to_pillows_bits(size, corners, target, seed):
    picture = noise(*size, seed)
    x0, x1 = sorted(round(corner * (size[0] - 1)) for corner in corners[:2])
    y0, y1 = sorted(round(corner * (size[1] - 1)) for corner in corners[2:])
    box = (x0, y0, x1 + 1, y1 + 1)
    expected = picture.crop(box).resize(target, BILINEAR)
    resized = pixels.crop_and_resize(picture, box, target)
    assert (resized.mode, resized.size, resized.tobytes()) == ("RGB", target, expected.tobytes())


@needs_kernel
def test_pillows_order_of_steps_is_kept_on_both_sides_of_where_it_changes():
    rng = np.random.default_rng(5)
    orders = set()
    for _ in range(300):
        to_width, to_height, wider, off = (int(x) for x in rng.integers((5, 5, -4, -3), (60, 60, 20, 4)))
        size = (max(1, to_width + wider), max(1, to_height + 2 * wider + off))
        picture = noise(*size)
        resized = pixels.crop_and_resize(picture, (0, 0, *size), (to_width, to_height))
        assert resized.tobytes() == picture.resize((to_width, to_height), BILINEAR).tobytes()
        orders.add(pixels.pillows_rule()(size, (to_width, to_height)))
    assert False in orders


@needs_kernel
@pytest.mark.parametrize("op", [ops.RandomResizedCrop(32), ops.Resize((20, 31)), ops.Resize(24)])
def test_ops_give_the_same_bits_without_the_extension(op, monkeypatch):
    pipeline = Pipeline([ops.Decode(), op, ops.ToTensor(), ops.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))])
    data = encode(scene(131, 97, seed=3), "jpeg 4:2:0")
    keys = [Key(2, epoch, 9) for epoch in range(8)]
    fast = [pipeline.run(data, key).tobytes() for key in keys]
    monkeypatch.setattr(pixels, "pillows_rule", lambda: None)
    assert [pipeline.run(data, key).tobytes() for key in keys] == fast


@needs_kernel
def test_an_extension_that_differs_from_pillow_by_one_bit_is_not_used(monkeypatch):
    real = pixels._resize

    def off_by_one(*args):
        picture = real(*args)
        picture.putpixel((0, 0), tuple(value ^ 1 for value in picture.getpixel((0, 0))))
        return picture

    monkeypatch.setattr(pixels, "_resize", off_by_one)
    assert pixels.pillows_rule.__wrapped__() is None


@pytest.mark.parametrize("missing", [{"kernel": None}, {"_MACHINES": ()}])
def test_without_the_extension_pillow_does_it(missing, monkeypatch):
    for name, value in missing.items():
        monkeypatch.setattr(pixels, name, value)
    assert pixels.pillows_rule.__wrapped__() is None
    monkeypatch.setattr(pixels, "pillows_rule", lambda: None)
    picture, box = noise(40, 30), (3, 4, 33, 24)
    expected = picture.crop(box).resize((9, 8), BILINEAR)
    assert pixels.crop_and_resize(picture, box, (9, 8)).tobytes() == expected.tobytes()
    assert not pixels.look_up(picture, np.zeros((3, 256), np.float32), np.empty((3, 30, 40), np.float32))


def test_other_modes_and_boxes_beyond_the_picture_are_left_to_pillow():
    for picture, box in ((noise(20, 20).convert("L"), (1, 1, 9, 9)), (noise(20, 20), (10, 10, 30, 30))):
        expected = picture.crop(box).resize((7, 7), BILINEAR)
        assert pixels.crop_and_resize(picture, box, (7, 7)).tobytes() == expected.tobytes()
    with pytest.raises(ValueError, match="height and width"):
        pixels.crop_and_resize(noise(20, 20), (0, 0, 9, 9), (0, 7))


@pytest.mark.parametrize(
    "normalize",
    [ops.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), ops.Normalize((0.3,), (7.0,))],
    ids=["three", "one"],
)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_the_look_up_of_floats_is_to_tensor_and_normalize(normalize, mode):
    if mode == "L" and len(normalize.mean) == 3:
        pytest.skip("three means for one channel")
    picture = noise(33, 21).convert(mode)
    expected = normalize.apply(ops.ToTensor().apply(picture))
    ((fused,),) = fuse.fuse((ops.ToTensor(), normalize)).values()
    for out in (None, np.empty_like(expected), np.empty((2, *expected.shape), np.float32)[1]):
        result = fused.run(picture, (None, None), out)
        assert result.tobytes() == expected.tobytes()
        assert out is None or np.shares_memory(result, out)


@needs_kernel
def test_the_kernel_refuses_sizes_that_are_not_those_of_the_picture():
    source, target = noise(8, 6).__arrow_c_array__()[1], noise(4, 4).__arrow_c_array__()[1]
    for size, box, to_size in (
        ((9, 6), (0, 0, 1, 1), (4, 4)),
        ((8, 6), (0, 0, 9, 1), (4, 4)),
        ((8, 6), (-1, 0, 1, 1), (4, 4)),
        ((8, 6), (3, 3, 3, 4), (4, 4)),
        ((8, 6), (0, 0, 8, 6), (4, 5)),
        ((8, 6), (0, 0, 8, 6), (0, 4)),
    ):
        with pytest.raises(ValueError, match=r"expected|empty"):
            pixels.kernel.resize(source, size, box, target, to_size, False)
    table = np.zeros((3, 256), np.float32)
    whole, no_flips = (0, 0, 8, 6), (False, False, False)
    with pytest.raises(ValueError, match="four bytes per pixel"):
        pixels.kernel.look_up(source, (9, 6), (0, 0, 9, 6), *no_flips, np.empty((3, 6, 9), np.float32), table)
    with pytest.raises(ValueError, match="3 × 256"):
        pixels.kernel.look_up(source, (8, 6), whole, *no_flips, np.empty((3, 6, 8), np.float32), table[:2])
    for box in ((0, 0, 9, 6), (-1, 0, 8, 6), (0, 5, 8, 5)):
        with pytest.raises(ValueError, match="empty or not inside"):
            pixels.kernel.separate(source, (8, 6), box, *no_flips, np.empty((3, 6, 8), np.uint8))
    with pytest.raises(ValueError, match="3 channels"):
        pixels.kernel.separate(source, (8, 6), whole, *no_flips, np.empty((4, 6, 8), np.uint8))


@needs_kernel
@pytest.mark.parametrize("size", [(1, 1), (15, 1), (16, 1), (17, 3), (33, 31), (224, 224)])
def test_channels_are_put_one_after_the_other(size):
    picture = noise(*size)
    tensor = np.empty((3, size[1], size[0]), np.uint8)
    assert pixels.separate(picture, tensor)
    assert np.array_equal(tensor, np.asarray(picture).transpose(2, 0, 1))
    assert np.array_equal(ops.PILToTensor().apply(picture), tensor)


def test_channels_are_left_to_pillow_where_the_extension_cannot_write_them():
    picture = noise(20, 10)
    for wrong in (
        np.empty((3, 20, 10), np.uint8),
        np.empty((3, 10, 20), np.float32),
        np.empty((10, 20, 3), np.uint8).T,
    ):
        assert not pixels.separate(picture, wrong)
    assert not pixels.separate(picture.convert("L"), np.empty((1, 10, 20), np.uint8))
    assert np.array_equal(ops.PILToTensor().apply(picture.convert("L"))[0], np.asarray(picture.convert("L")))
