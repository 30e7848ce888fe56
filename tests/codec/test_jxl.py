"""JPEG XL on its own: exact on every size and mode, refused before anything large is allocated."""

import random
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sophon.codec import CODECS, codec_named, jxl, legal_cuts
from sophon.codec.jxl_header import declared
from sophon.codec.table import offered
from sophon.errors import ConfigError, PayloadError
from sophon.pipeline import Kind, Pipeline, Spec, ops, spec_of
from tests.support.pictures import scene

needs_jxl = pytest.mark.skipif(not jxl.available(), reason="imagecodecs is not installed; install sophon-loader[jxl]")
NAMES = ["jxl1", "jxl3"]
ANY_IMAGE = Spec(Kind.IMAGE, (None, None, 3))
PIPELINE = Pipeline([ops.Decode(), ops.CenterCrop(30), ops.ToTensor()])


@needs_jxl
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pictures_of_any_size_come_back(name, mode):
    codec, rng = codec_named(name), random.Random(1)
    sizes = [(1, 1), (8, 8), (224, 224), (256, 256), (257, 255), (1200, 3), (3, 1100), (160, 90), (2, 1), (128, 96)]
    for size in [*sizes, *((rng.randrange(1, 300), rng.randrange(1, 90)) for _ in range(20))]:
        picture = scene(*size).convert(mode)
        payload = codec.encode(picture)
        assert declared(payload[:64]) == spec_of(picture).shape
        assert codec.decode(payload, spec_of(picture)).tobytes() == picture.tobytes()


@needs_jxl
@pytest.mark.parametrize("name", NAMES)
def test_flat_and_noisy_pictures_come_back(name):
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (61, 75, 3), np.uint8))
    for picture in (noise, Image.new("RGB", (500, 300), (1, 2, 3)), Image.new("L", (64, 64), 255)):
        payload = codec_named(name).encode(picture)
        assert payload == codec_named(name).encode(picture)
        assert codec_named(name).decode(memoryview(payload), spec_of(picture)).tobytes() == picture.tobytes()


@needs_jxl
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [(16, 16), (96, 96), (224, 224), (300, 260)])
def test_two_colours_that_libjxl_cannot_tell_apart_come_back(name, size):
    picture = Image.new("RGB", size, (9, 9, 9))
    picture.putpixel((4, 3), (70, 110, 231))
    picture.putpixel((5, 3), (48, 144, 242))
    payload = codec_named(name).encode(picture)
    assert codec_named(name).decode(payload, spec_of(picture)).tobytes() == picture.tobytes()


@needs_jxl
def test_small_crops_with_few_colours_come_back():
    rng = np.random.default_rng(5)
    for number in range(300):
        side = int(rng.integers(8, 24))
        box = (0, 0, int(rng.integers(8, 60)), int(rng.integers(8, 60)))
        picture = scene(60, 60, seed=number % 20).crop(box).resize((side, side), Image.Resampling.BILINEAR)
        payload = codec_named("jxl1").encode(picture)
        assert codec_named("jxl1").decode(payload, spec_of(picture)).tobytes() == picture.tobytes()


@needs_jxl
def test_more_effort_takes_fewer_bytes():
    crop = scene(224, 224, seed=3)
    raw, fast, slow = (len(codec_named(name).encode(crop)) for name in ("raw", *NAMES))
    assert slow < fast < raw


@needs_jxl
def test_one_thread_is_one():
    codec, picture = codec_named("jxl3"), scene(900, 700)
    tasks = Path("/proc/self/task")
    before, seen, done = len(list(tasks.iterdir())), set(), threading.Event()

    def work() -> None:
        codec.decode(codec.encode(picture), spec_of(picture))
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    while not done.is_set():  # the GIL is free meanwhile
        seen.add(len(list(tasks.iterdir())))
    worker.join()
    assert max(seen) == before + 1


@needs_jxl
def test_a_header_that_declares_a_huge_picture_is_refused_before_anything_is_allocated():
    # Not a multiple of 8, so that both sides are written as numbers: 1 bit, then 2 of selector and 30 of height.
    bits = 0 | 3 << 1 | ((1 << 30) - 1) << 3
    payload = b"\xff\x0a" + bits.to_bytes(5, "little") + codec_named("jxl1").encode(scene(9, 7))[4:]
    with pytest.raises(PayloadError):
        codec_named("jxl1").decode(payload, ANY_IMAGE)


def _changed(payload: bytes, bit: int) -> bytes:
    value = int.from_bytes(payload, "little") ^ 1 << bit
    return value.to_bytes(len(payload), "little")


@needs_jxl
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_every_bit_of_the_header_matters_or_does_no_harm(mode):
    picture = scene(300, 17).convert(mode)
    for name in NAMES:
        payload = codec_named(name).encode(picture)
        refused = 0
        for bit in range(8 * 16):
            try:
                found = codec_named(name).decode(_changed(payload, bit), spec_of(picture))
            except PayloadError:
                refused += 1
                continue
            assert found.size == picture.size
        assert refused > 60


@needs_jxl
def test_what_our_encoder_never_writes_is_refused():
    import imagecodecs

    rgb = np.asarray(scene(40, 30))
    alpha = np.dstack([rgb, rgb[:, :, 0]])
    lossy = imagecodecs.jpegxl_encode(rgb, level=90, numthreads=1)
    deep = imagecodecs.jpegxl_encode(rgb.astype(np.uint16) * 257, lossless=True, numthreads=1)
    boxed = imagecodecs.jpegxl_encode(rgb, lossless=True, usecontainer=True, numthreads=1)
    moving = imagecodecs.jpegxl_encode(np.stack([rgb, rgb]), lossless=True, photometric="rgb", numthreads=1)
    transparent = imagecodecs.jpegxl_encode(alpha, lossless=True, numthreads=1)
    for payload in (lossy, deep, boxed, moving, transparent, b"", b"\xff\x0a", bytes(100)):
        with pytest.raises(PayloadError):
            codec_named("jxl1").decode(bytes(payload), ANY_IMAGE)


def test_without_imagecodecs_it_is_not_offered(monkeypatch):
    monkeypatch.setattr(jxl, "_imagecodecs", lambda: None)
    assert set(NAMES) <= set(CODECS)
    assert not set(NAMES) & set(offered())
    assert not {cut.codec for cut in legal_cuts(PIPELINE)} & set(NAMES)
    with pytest.raises(ConfigError, match=r'pip install ".+\[jxl\]"'):
        codec_named("jxl1").encode(scene(9, 7))
    payload = bytes.fromhex("ff0a00101009080201009802")  # the head of one pixel in RGB
    with pytest.raises(PayloadError, match="not installed"):
        codec_named("jxl1").decode(payload, ANY_IMAGE)


@needs_jxl
def test_it_is_offered_for_pictures_where_it_works():
    assert set(NAMES) <= set(offered())
    assert {str(cut) for cut in legal_cuts(PIPELINE) if cut.codec in NAMES} == {"1:jxl1", "1:jxl3", "2:jxl1", "2:jxl3"}
