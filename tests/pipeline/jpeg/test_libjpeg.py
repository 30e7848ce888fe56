"""Files that Pillow's own libjpeg decodes without Pillow have Pillow's bits, or are left to Pillow."""

import io

import numpy as np
import pytest
from PIL import Image

from sophon.codec.cut import RAW, finish_payload
from sophon.pipeline import Key, Pipeline, ops
from sophon.pipeline.jpeg import libjpeg
from tests.support.pictures import encode, scene

needs_libjpeg = pytest.mark.skipif(not libjpeg.available(), reason="no libjpeg of a Pillow wheel, or no extension")
RECIPE = Pipeline([ops.Decode(), ops.RandomResizedCrop(40), ops.RandomHorizontalFlip(), ops.PILToTensor()])


def _saved(picture: Image.Image, **how) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", **how)
    return file.getvalue()


@needs_libjpeg
@pytest.mark.parametrize("sampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (7, 9), (64, 48), (201, 133)])
def test_pictures_have_pillows_bits(size, sampling, progressive):
    data = _saved(scene(*size, 3), subsampling=sampling, progressive=progressive, quality=83)
    picture = libjpeg.decoded(data, size)
    with Image.open(io.BytesIO(data)) as expected:
        assert (picture.mode, picture.size, picture.tobytes()) == ("RGB", size, expected.tobytes())
    assert libjpeg.decoded(memoryview(data), size).tobytes() == picture.tobytes()


@needs_libjpeg
def test_a_file_of_another_size_or_number_of_components_is_left_to_pillow():
    data = _saved(scene(30, 20, 1))
    for size in ((31, 20), (30, 21), (29, 20), (20, 30)):
        assert libjpeg.decoded(data, size) is None
    assert libjpeg.decoded(_saved(scene(30, 20, 1).convert("L")), (30, 20)) is None
    assert libjpeg.decoded(_saved(scene(30, 20, 1).convert("CMYK")), (30, 20)) is None


@needs_libjpeg
def test_damaged_files_are_left_to_pillow_and_hurt_nobody():
    size = (90, 70)
    data = _saved(scene(*size, 2))
    for end in (0, 1, 2, 20, len(data) // 2, len(data) - 2, len(data) - 1):
        assert libjpeg.decoded(data[:end], size) is None
    rng = np.random.default_rng(4)
    for _ in range(300):
        broken = bytearray(data)
        for at in rng.integers(2, len(data), 4):
            broken[at] = rng.integers(256)
        picture = libjpeg.decoded(bytes(broken), size)
        if picture is not None:  # damage that libjpeg does not notice, and neither does Pillow
            with Image.open(io.BytesIO(broken)) as expected:
                assert picture.tobytes() == expected.convert("RGB").tobytes()
    assert libjpeg.decoded(data, size) is not None


@pytest.mark.parametrize("kind", ["jpeg 4:4:4", "jpeg 4:2:0", "jpeg 4:2:2"])
def test_recipes_give_the_same_bits_without_it(kind, monkeypatch):
    data = encode(scene(161, 117, seed=3), kind)
    keys = [Key(2, epoch, 9) for epoch in range(12)]  # crops of all sizes: parts of the file, and all of it
    fast = [finish_payload(RECIPE, data, key, RAW).tobytes() for key in keys]
    monkeypatch.setattr(libjpeg, "available", lambda: False)
    assert [finish_payload(RECIPE, data, key, RAW).tobytes() for key in keys] == fast


@pytest.mark.parametrize("missing", [{"kernel": None}, {"_library": lambda: None}])
def test_without_the_library_or_the_extension_pillow_does_it(missing, monkeypatch):
    for name, value in missing.items():
        monkeypatch.setattr(libjpeg, name, value)
    assert not libjpeg.available.__wrapped__()


@needs_libjpeg
def test_a_library_that_differs_from_pillow_by_one_bit_is_not_used(monkeypatch):
    real = libjpeg._decoded

    def off_by_one(data, size):
        picture = real(data, size)
        picture.putpixel((0, 0), tuple(value ^ 1 for value in picture.getpixel((0, 0))))
        return picture

    monkeypatch.setattr(libjpeg, "_decoded", off_by_one)
    assert not libjpeg.available.__wrapped__()


@needs_libjpeg
def test_only_a_library_that_is_loaded_is_used():
    assert not libjpeg.kernel.open_library(b"/nowhere/libjpeg.so")
    try:
        with pytest.raises(ValueError, match="no libjpeg"):
            libjpeg.kernel.decode(b"x", (1, 1), None)
    finally:
        assert libjpeg.kernel.open_library(str(libjpeg._library()).encode())
