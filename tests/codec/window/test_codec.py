"""The codec around the kernel: which box, which index, what is refused."""

import contextlib
import io

import numpy as np
import pytest
from PIL import Image

from sophon.codec import Cut, codec_named, finish_payload, make_payload
from sophon.codec.window import available
from sophon.codec.window import codec as window_codec
from sophon.codec.window.header import parse
from sophon.codec.window.indexes import Indexes
from sophon.errors import ConfigError, OpError, PayloadError
from sophon.pipeline import Key, Part, Pipeline, can_crop_early, needed_box, ops
from tests.support.pictures import encode, photos, scene

pytestmark = pytest.mark.skipif(not available(), reason="the extension was not built")

WINDOW = Cut(0, "window")
END = (ops.ToTensor(), ops.Normalize((0.5,), (0.5,)))
CROPS = {
    "random resized crop": (ops.RandomResizedCrop(32),),
    "random crop": (ops.RandomCrop(20),),
    "center crop": (ops.CenterCrop((30, 20)),),
    "flips before the crop": (ops.RandomHorizontalFlip(), ops.RandomVerticalFlip(), ops.RandomResizedCrop(32)),
    "crop and flips": (ops.RandomResizedCrop(32), ops.RandomHorizontalFlip(), ops.ColorJitter(0.4)),
}
FORMS = ["jpeg 4:2:0", "jpeg 4:2:2", "jpeg 4:4:4", "jpeg gray", "jpeg cmyk", "jpeg rotated", "jpeg progressive"]


@pytest.fixture(autouse=True)
def indexes(monkeypatch):
    fresh = Indexes()
    monkeypatch.setattr(window_codec, "INDEXES", fresh)
    return fresh


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("crops", CROPS)
@pytest.mark.matrix(every=3)
def test_a_window_ends_in_the_same_bits_with_and_without_an_index(crops, form, indexes):
    pipeline = Pipeline([ops.Decode(), *CROPS[crops], *END])
    data = encode(scene(121, 87, seed=4), form)
    for room_bytes in (0, 10**6):
        indexes.max_bytes = room_bytes
        for epoch in range(12):
            key = Key(1, epoch, 7)
            expected = pipeline.run(data, key)
            payload = make_payload(pipeline, data, key, WINDOW)
            assert finish_payload(pipeline, payload, key, WINDOW).tobytes() == expected.tobytes()
            assert finish_payload(pipeline, data, key, Cut(0)).tobytes() == expected.tobytes()
    assert len(indexes) == (form != "jpeg progressive")  # whose scans are read every time


def test_a_node_that_crops_decodes_only_the_part_and_one_that_does_not_decodes_it_all(indexes, monkeypatch):
    pipeline = Pipeline(
        [ops.Decode(), ops.RandomHorizontalFlip(1.0), ops.RandomResizedCrop(32, scale=(0.1, 0.3)), *END]
    )
    data = encode(scene(180, 120, seed=1), "jpeg 4:2:0")
    decoded = []
    real = ops.Decode.apply
    monkeypatch.setattr(ops.Decode, "apply", lambda *args: decoded.append(args) or real(*args))
    for k in range(1, 6):
        whole = pipeline.run(data, Key(0, 0, 0), 0, k)
        decoded.clear()
        assert make_payload(pipeline, data, Key(0, 0, 0), Cut(k)) == codec_named("raw").encode(whole)
        assert len(decoded) == (k < 3)  # windows are decoded without the op
    assert len(indexes) == 1


def test_windows_of_photos_are_smaller_and_end_in_the_same_bits():
    pipeline = Pipeline([ops.Decode(), ops.RandomResizedCrop(224), *END])
    whole = windows = 0
    for sample, data in enumerate(photos()):
        for epoch in range(3):
            key = Key(0, epoch, sample)
            payload = make_payload(pipeline, data, key, WINDOW)
            whole, windows = whole + len(data), windows + len(payload)
            assert finish_payload(pipeline, payload, key, WINDOW).tobytes() == pipeline.run(data, key).tobytes()
    assert windows < 0.7 * whole


def test_only_pipelines_that_crop_before_they_look_at_all_of_a_picture_have_windows():
    def early(*steps):
        return can_crop_early(Pipeline([ops.Decode(), *steps]))

    assert early(ops.RandomResizedCrop(8))
    assert early(ops.RandomVerticalFlip(), ops.CenterCrop(8), ops.ColorJitter(0.4))
    assert early(ops.Resize(8), ops.RandomHorizontalFlip(), ops.CenterCrop(4))
    assert not early()
    assert not early(ops.Resize(8))
    assert not early(ops.ColorJitter(contrast=0.4), ops.RandomResizedCrop(8))
    assert not early(lambda picture: picture, ops.RandomResizedCrop(8))
    with pytest.raises(ConfigError, match="cannot be cut at 0:window"):
        make_payload(Pipeline([ops.Decode(), ops.Resize(8)]), b"", Key(0, 0, 0), WINDOW)


def test_the_box_is_known_before_anything_is_decoded():
    pipeline = Pipeline([ops.Decode(), ops.RandomHorizontalFlip(1.0), ops.RandomCrop(10), *END])
    picture = scene(60, 40)
    top, left, height, width = needed_box(pipeline, Key(0, 3, 1), 40, 60)
    flipped = pipeline.run(picture, Key(0, 3, 1), 1, 3)
    piece = picture.crop((left, top, left + width, top + height)).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    assert piece.tobytes() == flipped.tobytes()


def test_a_crop_larger_than_the_picture_needs_all_of_it():
    pipeline = Pipeline([ops.Decode(), ops.CenterCrop(100), *END])
    data = encode(scene(60, 40), "jpeg 4:2:0")
    with pytest.raises(OpError, match="needs the whole picture"):
        make_payload(pipeline, data, Key(0, 0, 0), WINDOW)
    assert finish_payload(pipeline, data, Key(0, 0, 0), Cut(0)).shape == (3, 100, 100)


@pytest.mark.parametrize("form", ["png", "gif", "webp"])
def test_files_without_windows_are_refused(form):
    pipeline = Pipeline([ops.Decode(), ops.RandomResizedCrop(8)])
    with pytest.raises(OpError, match="no window"):
        make_payload(pipeline, encode(scene(60, 40), form), Key(0, 0, 0), WINDOW)


def test_a_picture_beyond_the_pixel_limit_is_refused():
    pipeline = Pipeline([ops.Decode(max_pixels=100), ops.RandomResizedCrop(8)])
    with pytest.raises(OpError, match="it has more pixels than the limit"):
        make_payload(pipeline, encode(scene(60, 40), "jpeg 4:2:0"), Key(0, 0, 0), WINDOW)


def test_hostile_windows_end_in_a_typed_error_or_a_tensor():
    pipeline = Pipeline([ops.Decode(), ops.RandomResizedCrop(16), *END])
    key = Key(0, 0, 0)
    good = make_payload(pipeline, encode(scene(90, 70), "jpeg 4:2:0"), key, WINDOW)
    rng = np.random.default_rng(3)
    for turn in range(1500):
        payload = bytearray(good[: rng.integers(len(good))] if turn % 5 == 0 else good)
        reach = min(len(payload), 16 if turn % 2 else len(payload))
        for at in rng.integers(0, max(reach, 1), 3):
            if at < len(payload):
                payload[at] = rng.integers(256)
        try:
            assert finish_payload(pipeline, bytes(payload), key, WINDOW).shape == (3, 16, 16)
        except (PayloadError, OpError, ConfigError):
            continue


def test_a_window_whose_frame_lies_about_its_size_never_writes_outside_of_its_picture():
    # Pillow's decoder believes the size that it is given; it is taken from the first frame that libjpeg meets.
    pipeline = Pipeline([ops.Decode(), ops.RandomResizedCrop(16), *END])
    key = Key(0, 0, 0)
    good = make_payload(pipeline, encode(scene(90, 70), "jpeg 4:2:0"), key, WINDOW)
    frame = good.index(b"\xff\xc0\x00\x11")
    second = good[:2] + good[frame : frame + 5] + b"\x00\x01\x00\x01" + good[frame + 9 : frame + 19] + good[2:]
    for payload in (
        good[: frame + 5] + b"\x0f\x00\x0f\x00" + good[frame + 9 :],
        good[: frame + 5] + b"\x00\x01\x00\x01" + good[frame + 9 :],
        good[:16] + second[16:],
        good[:18] + b"\xff\xdb\x00\x00" + good[18:],
        good[:18] + b"\xff\xfe\x00\x04ab" + good[18:],
        good[:16],
    ):
        with contextlib.suppress(PayloadError, OpError, ConfigError):
            assert finish_payload(pipeline, payload, key, WINDOW).shape == (3, 16, 16)


def test_a_part_that_does_not_hold_the_box_is_an_error_and_never_black_pixels():
    pipeline = Pipeline([ops.Decode(), ops.RandomCrop(20)])
    part = Part(scene(10, 10), 0, 0, 60, 80)
    with pytest.raises(OpError, match="is not in the part that was decoded"):
        pipeline.run(part, Key(0, 0, 0), 1)


def test_indexes_are_bounded_and_found_by_the_bytes_of_the_file():
    files = [encode(scene(200, 150, seed=i), "jpeg 4:2:0") for i in range(6)]
    indexes = Indexes(max_bytes=1000)
    built = [indexes.build(data, parse(data)) for data in files]
    assert 0 < len(indexes) < 6
    assert [index is not None for index in built] == [i < len(indexes) for i in range(6)]
    assert indexes.find(bytes(bytearray(files[0]))) is built[0]
    assert indexes.find(files[5]) is None
    out = io.BytesIO()
    scene(200, 150, seed=0).save(out, "JPEG", quality=50)
    assert indexes.find(out.getvalue()) is None
