"""The index: the same windows as without it, small, and safe whatever its bytes."""

import contextlib
import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon.codec.window import Index, NotWindowable, available, build_index, cut, parse
from sophon.codec.window import jpeg as window_jpeg
from sophon.errors import ArtifactError
from tests.codec.window.jpeg_writer import Picture
from tests.codec.window.support import SAMPLINGS, assert_same, boxes, pixels, saved, scene, small_files

pytestmark = pytest.mark.skipif(not available(), reason="the extension was not built")

DATA = saved(scene(300, 200), quality=90)


def strided(data: bytes, stride: int) -> Index:
    header = parse(data)
    scan = window_jpeg._scan(header, 8)
    return Index(stride, len(data), window_jpeg.kernel.fingerprint(data), scan.index(data, stride))


@pytest.mark.parametrize("sampling", ["gray", "4:4:4", "4:2:0", "4:1:1", "CMYK"])
@pytest.mark.parametrize("restart", [0, 1, 3, 4, 11])
@pytest.mark.parametrize("stride", [1, 2, 3, 4, 5, 100])
@pytest.mark.matrix(every=5)
def test_any_stride_gives_the_same_windows(sampling, restart, stride):
    data = Picture(90, 50, SAMPLINGS[sampling], seed=stride, restart=restart).write()
    whole, index = pixels(data), strided(data, stride)
    for box in boxes(90, 50, random.Random(stride)):
        assert_same(data, whole, box, index)


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("quality", [60, 80, 95])
def test_it_takes_one_to_three_percent_of_the_file(subsampling, quality):
    data = saved(scene(500, 375), quality=quality, subsampling=subsampling)
    assert 0.01 < len(build_index(data).to_bytes()) / len(data) < 0.03


def test_it_survives_being_saved():
    for data in small_files():
        index = build_index(data)
        assert Index.from_bytes(index.to_bytes()) == index
        assert Index.from_bytes(memoryview(index.to_bytes())).to_bytes() == index.to_bytes()


def test_it_is_of_one_file_only():
    index = build_index(DATA)
    other = saved(scene(300, 200, seed=1), quality=90)
    changed = DATA[:-50] + bytes((DATA[-50] ^ 1,)) + DATA[-49:]
    for data in (other, changed, DATA + b"\0"):
        with pytest.raises(ArtifactError, match="not built from this file"):
            cut(data, (0, 0, 10, 10), index)


@pytest.mark.parametrize("size", range(0, 400, 7))
def test_a_truncated_index_is_noticed(size):
    with pytest.raises(ArtifactError):
        Index.from_bytes(build_index(DATA).to_bytes()[:size])


def test_an_index_of_another_version_is_noticed():
    packed = build_index(DATA).to_bytes()
    with pytest.raises(ArtifactError, match="version 2"):
        Index.from_bytes(packed[:4] + struct.pack("<H", 2) + packed[6:])


@given(st.binary(max_size=200))
def test_random_bytes_are_no_index(packed):
    for data in (packed, b"SWIX\x01\x00" + packed):
        with pytest.raises(ArtifactError):
            Index.from_bytes(data)


def test_every_single_flipped_bit_is_noticed():
    packed = build_index(saved(scene(40, 40))).to_bytes()
    for at in range(len(packed)):
        with pytest.raises(ArtifactError):
            Index.from_bytes(packed[:at] + bytes((packed[at] ^ 1 << at % 8,)) + packed[at + 1 :])


def hostile(index: Index, rng: random.Random) -> Index:
    """Return an index with other points, as if its checksum had been made to fit."""
    points = bytearray(index.points)
    kind = rng.randrange(5)
    if kind == 0:
        del points[rng.randrange(len(points)) :]
    elif kind == 1:
        points += rng.randbytes(rng.randrange(1, 20))
    elif kind == 2:
        points = bytearray(rng.randbytes(len(points)))
    else:
        for _ in range(rng.randrange(1, 5)):
            points[rng.randrange(len(points))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    stride = index.stride if rng.random() < 0.8 else rng.choice((1, 2, 3, 7, 65535))
    made = Index(stride, index.file_bytes, index.fingerprint, bytes(points))
    packed = made.to_bytes()
    assert zlib.crc32(packed[:-4]) == struct.unpack("<I", packed[-4:])[0]
    return Index.from_bytes(packed)


def test_hostile_points_never_crash():
    rng = random.Random(5)
    for data in small_files():
        header = parse(data)
        index = build_index(data)
        for _ in range(150):
            box = rng.choice(boxes(header.width, header.height, rng, 2))
            with contextlib.suppress(ArtifactError, NotWindowable):
                cut(data, box, hostile(index, rng))


def test_a_damaged_file_has_no_index():
    for data in small_files():
        start = parse(data).scan_start
        for at in range(start, len(data) - 3, max(1, (len(data) - start) // 40)):
            with pytest.raises(NotWindowable):
                build_index(data[:at] + b"\xff\xd9")
            with pytest.raises(NotWindowable):
                build_index(data[:at] + b"\xff\xc0" + data[at + 2 :])
