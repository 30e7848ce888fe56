"""Files of a few bytes that ask for gigabytes or hours: refused for what they say, before anything is made of it."""

import io
import json
import struct
import tracemalloc
import zlib

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from sophon.errors import OpError
from sophon.pipeline import Key, Pipeline, ops
from sophon.pipeline.ops.audio import wav
from sophon.pipeline.ops.volumes.patch import PATCH, Patch
from sophon.pipeline.ops.volumes.written import nifti

MOST_BYTES = 48 << 20
KEY = Key(0, 0, 0)
ARRAY = {
    "zarr_format": 3,
    "node_type": "array",
    "data_type": "uint8",
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [{"name": "bytes"}, {"name": "zstd"}],
}


def array(shape, sides):
    return {**ARRAY, "shape": shape, "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": sides}}}


def zipped(meta, names=(), chunk=b""):
    """Return a zip file in which all chunks are the same bytes."""
    said = json.dumps(meta).encode()
    parts, members, at = [], [], 0
    for name, data in (("zarr.json", said), ("c", chunk)):
        head = (20, 0, 0, 0, 0, zlib.crc32(data), len(data), len(data), len(name), 0)
        parts.append(struct.pack("<4s5H3I2H", b"PK\3\4", *head) + name.encode() + data)
        members.append((at, zlib.crc32(data), len(data)))
        at += len(parts[-1])
    for name in ("zarr.json", *names):
        offset, crc, size = members[name != "zarr.json"]
        entry = (20, 20, 0, 0, 0, 0, crc, size, size, len(name), 0, 0, 0, 0, 0, offset)
        parts.append(struct.pack("<4s6H3I5H2I", b"PK\1\2", *entry) + name.encode())
    count, size = 1 + len(names), sum(map(len, parts[2:]))
    return b"".join((*parts, struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, size, at, 0)))


def changed(data, at, form, *values):
    found = bytearray(data)
    struct.pack_into(form, found, at, *values)
    return bytes(found)


def gzip_whose_voxels_begin_far_behind_its_header():
    head = changed(nifti(np.zeros((4, 4, 4), np.uint8)), 108, "<f", 2.0**33)
    return [ops.DecodeVolume()], zlib.compress(head + bytes(200 << 20), 6, 31)


def eight_bytes_to_each_of_the_voxels_that_are_allowed():
    head = changed(nifti(np.zeros((4, 4, 4))), 42, "<3h", 160, 128, 128)
    return [ops.DecodeVolume(max_voxels=160 * 128 * 128)], zlib.compress(head + bytes(160 * 128 * 128 * 8), 6, 31)


def one_chunk_to_a_voxel():
    return [ops.DecodeVolume()], zipped(array([600, 600, 600], [1, 1, 1]))


def large_chunks_of_which_one_voxel_each_is_wanted():
    chunk = pa.Codec("zstd").compress(bytes(1 << 24), asbytes=True)
    meta = array([1, 1, 60], [4096, 4096, 1])
    return [ops.DecodeVolume()], zipped(meta, [f"c/0/0/{number}" for number in range(60)], chunk)


def voxels_a_thousand_kilometres_apart():
    data = nifti(np.zeros((16, 16, 16), np.uint8), (1e3, 1e3, 10.0))
    return [ops.DecodeVolume(), ops.ResampleVolume((1.0, 1.0, 1.0))], data


def sixteen_samples_a_second():
    return [ops.DecodeAudio(), ops.Resample(16_000)], wav.written(wav.form_of(1, 16, 16), bytes(1 << 19))


def a_hundred_and_seventy_million_pixels_in_a_few_bytes():
    out = io.BytesIO()
    Image.new("RGB", (16, 16)).save(out, "WEBP", lossless=True)
    data = out.getvalue()
    assert data[12:16] == b"VP8L"
    size = struct.unpack_from("<I", data, 21)[0]
    return [ops.Decode()], changed(data, 21, "<I", (size & 0xF0000000) | 13_300 << 14 | 13_300)


BOMBS = [
    a_hundred_and_seventy_million_pixels_in_a_few_bytes,
    gzip_whose_voxels_begin_far_behind_its_header,
    eight_bytes_to_each_of_the_voxels_that_are_allowed,
    one_chunk_to_a_voxel,
    large_chunks_of_which_one_voxel_each_is_wanted,
    voxels_a_thousand_kilometres_apart,
    sixteen_samples_a_second,
]


def most_held(work):
    """Return the most bytes that were held at a time."""
    tracemalloc.start()
    try:
        work()
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.__name__)
def test_a_bomb_is_refused(bomb):
    recipe, data = bomb()

    def run():
        with pytest.raises(OpError):
            Pipeline(recipe).run(data, KEY)

    assert most_held(run) < MOST_BYTES


def patch(meta, rest=b""):
    head = json.dumps(meta).encode()
    return struct.pack("<4sI", PATCH, len(head)) + head + rest


def test_a_patch_of_more_chunks_than_can_be_is_refused():
    with pytest.raises(OpError, match="chunks"):
        Patch(
            patch({"box": [0, 0, 0, 600, 600, 600], "meta": array([600, 600, 600], [1, 1, 1]), "lengths": []}), 1 << 28
        )


def test_a_patch_of_numbers_with_a_hundred_thousand_fields_is_refused():
    said = {"box": [0, 0, 0, 1, 1, 1], "channels": 1, "sizes": [1, 1, 1], "dtype": "f4," * 100_000}
    with pytest.raises(OpError, match="numbers of type"):
        Patch(patch({**said, "spacing": [1, 1, 1], "slope": 1, "inter": 0}), 1 << 28)


@pytest.mark.parametrize("coded", [False, True])
def test_what_a_patch_promises_is_held_a_few_times_and_no_more(coded):
    side, kind = 128, "int32"
    said = {"box": [0, 0, 0, side, side, side], "channels": 1, "sizes": [side] * 3, "dtype": kind, "as": kind}
    said |= {"spacing": [1, 1, 1], "slope": 1, "inter": 0, "differences": coded}
    zeros = bytes(4 * side**3)
    data = patch(said, pa.Codec("zstd").compress(zeros, asbytes=True))
    assert most_held(lambda: Patch(data, side**3).read((0, 0, 0, side, side, side))) < 2.5 * len(zeros)


def test_a_long_sound_is_resampled_a_piece_at_a_time():
    data = wav.written(wav.form_of(1, 8_000, 16), bytes(2 * 400_000))
    recipe = Pipeline([ops.DecodeAudio(), ops.Resample(16_000)])
    made = recipe.run(data, KEY).array
    # The sound, once as float64, its result, and a few numbers for each sample of a piece.
    assert most_held(lambda: recipe.run(data, KEY)) < 3 * made.nbytes + (12 << 20)
