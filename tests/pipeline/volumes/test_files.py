"""Files of volumes: against nibabel and zarr, and hostile ones."""

import io
import json
import random
import struct
import time
import zipfile
import zlib

import nibabel
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from sophon.errors import Error, OpError
from sophon.pipeline import ops
from sophon.pipeline.ops.volumes.chunked import ChunkedFile
from sophon.pipeline.ops.volumes.decode import opened_file
from sophon.pipeline.ops.volumes.file import MAX_VOXELS, as_image, as_label
from sophon.pipeline.ops.volumes.nifti import NiftiFile
from sophon.pipeline.ops.volumes.patch import Patch, cut_patch
from sophon.pipeline.ops.volumes.written import chunked, nifti

RNG = np.random.default_rng(0)
TYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")


def of_nibabel(array, image=nibabel.Nifti1Image, order="<", slope=None, inter=0.0):
    header = image.header_class(endianness=order)
    header.set_data_dtype(array.dtype)
    made = image(array, np.diag([0.5, 2.0, 3.0, 1.0]), header, dtype=array.dtype)
    if slope is not None:
        made.header.set_slope_inter(slope, inter)
    data = made.to_bytes()
    if slope is not None:  # nibabel divides by the slope when it writes; the numbers here are the stored ones
        start = int(made.header["vox_offset"]) or (352 if image is nibabel.Nifti1Image else 544)
        data = data[:start] + array.astype(array.dtype.newbyteorder(order)).tobytes(order="F")
    return data


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("image", [nibabel.Nifti1Image, nibabel.Nifti2Image])
@pytest.mark.parametrize("dtype", TYPES)
def test_nifti_files_give_nibabels_numbers_and_spacing(dtype, image, order):
    array = (RNG.normal(size=(5, 4, 3)) * 50).astype(dtype)
    for slope, inter in ((None, 0.0), (0.25, -3.5)):
        data = of_nibabel(array, image, order, slope, inter)
        oracle = image.from_bytes(data)
        for file in (NiftiFile(data, MAX_VOXELS), NiftiFile(zlib.compress(data, wbits=31), MAX_VOXELS)):
            found = as_image(file.read(file.header.whole), file.header)
            expected = np.asanyarray(oracle.dataobj).astype(np.float32)
            assert found[0].tobytes() == expected.tobytes()
            assert file.header.spacing == pytest.approx(oracle.header.get_zooms())
            box = (1, 2, 0, 3, 1, 2)
            assert np.array_equal(as_image(file.read(box), file.header)[0], expected[1:4, 2:3, 0:2])


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 99))
def test_nifti_files_of_few_and_of_four_dimensions_are_read_as_nibabel_reads_them(shape, seed):
    array = np.random.default_rng(seed).integers(-9, 9, shape).astype(np.int16)
    file = NiftiFile(nibabel.Nifti1Image(array, np.eye(4)).to_bytes(), MAX_VOXELS)
    expected = array.reshape([*shape, *(1,) * (4 - len(shape))])
    assert np.array_equal(file.read(file.header.whole), np.moveaxis(expected, 3, 0))


@given(st.tuples(*[st.integers(1, 6)] * 3, st.integers(1, 3)), st.sampled_from([0, 100, 354, 1 << 16]), st.data())
@settings(deadline=None, max_examples=60)
def test_a_box_of_a_nifti_file_is_what_nibabel_cuts_out(shape, member_bytes, data):
    array = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    oracle = nibabel.Nifti1Image(array, np.eye(4))
    starts = [data.draw(st.integers(0, n - 1)) for n in shape[:3]]
    counts = [data.draw(st.integers(1, n - at)) for n, at in zip(shape, starts, strict=False)]
    stored = oracle.to_bytes()
    if member_bytes:
        members = [stored[at : at + member_bytes] for at in range(0, len(stored), member_bytes)]
        stored = b"".join(zlib.compress(member, wbits=31) for member in members)
    file = NiftiFile(stored, MAX_VOXELS)
    places = tuple(slice(at, at + count) for at, count in zip(starts, counts, strict=True))
    expected = np.asanyarray(oracle.slicer[places].dataobj)
    assert np.array_equal(file.read((*starts, *counts)), np.moveaxis(expected, 3, 0))


def test_what_we_write_nibabel_reads(tmp_path):
    array = RNG.integers(-999, 999, (6, 5, 4)).astype(np.int16)
    (tmp_path / "v.nii.gz").write_bytes(nifti(array, (1.5, 0.75, 0.8), compressed=True))
    read = nibabel.load(tmp_path / "v.nii.gz")
    assert np.array_equal(np.asanyarray(read.dataobj), array)
    assert read.header.get_zooms() == pytest.approx((1.5, 0.75, 0.8))


def of_zarr(array, path, chunks, **more):
    store = zarr.storage.ZipStore(path, mode="w")
    made = zarr.create_array(store, shape=array.shape, dtype=array.dtype, chunks=chunks, **more)
    made[:] = array
    store.close()
    return path.read_bytes()


@pytest.mark.parametrize(
    "compressors",
    [
        None,
        zarr.codecs.ZstdCodec(level=3),
        zarr.codecs.GzipCodec(),
        zarr.codecs.BloscCodec(cname="zstd", shuffle="shuffle"),
        zarr.codecs.BloscCodec(cname="lz4", shuffle="bitshuffle"),
    ],
    ids=["none", "zstd", "gzip", "blosc zstd", "blosc lz4"],
)
@pytest.mark.parametrize("dtype", ["int16", "float32", "uint8"])
def test_zarr_arrays_in_a_zip_file_give_zarrs_numbers(tmp_path, compressors, dtype):
    array = RNG.integers(0, 99, (21, 18, 20)).astype(dtype)
    array[:8, :8, :8] = 0  # a chunk that is not written
    attributes = {"spacing": [3.0, 0.7, 0.8]}
    data = of_zarr(array, tmp_path / "a.zip", (8, 8, 8), compressors=compressors, attributes=attributes)
    file = opened_file(memoryview(data), MAX_VOXELS)
    assert isinstance(file, ChunkedFile)
    assert file.header.spacing == (3.0, 0.7, 0.8)
    assert np.array_equal(file.read(file.header.whole)[0], array)
    assert np.array_equal(file.read((5, 7, 16, 9, 11, 4))[0], array[5:14, 7:18, 16:20])


def test_zarr_arrays_of_four_dimensions_have_their_channels_first(tmp_path):
    array = RNG.normal(size=(3, 10, 9, 8)).astype(np.float32)
    file = ChunkedFile(of_zarr(array, tmp_path / "a.zip", (2, 4, 4, 4)), MAX_VOXELS)
    assert np.array_equal(file.read((1, 2, 3, 8, 7, 5)), array[:, 1:9, 2:9, 3:8])


def test_what_we_write_zarr_reads(tmp_path):
    array = RNG.integers(-999, 999, (40, 33, 20)).astype(np.int16)
    (tmp_path / "v.zip").write_bytes(chunked(array, 16, (3.0, 1.0, 1.0)))
    assert np.array_equal(zarr.open_array(zarr.storage.ZipStore(tmp_path / "v.zip"), mode="r")[:], array)


@given(
    st.sampled_from(["uint8", "int16", "uint16", "int32", "float32", "float64"]),
    st.integers(0, 2**32 - 1),
    st.tuples(*[st.integers(1, 12)] * 3),
    st.data(),
)
@settings(deadline=None, max_examples=60)
def test_a_patch_has_the_numbers_of_its_box_to_the_last_bit(dtype, seed, shape, data):
    rng = np.random.default_rng(seed)
    array = rng.integers(0, 2**31, shape).astype(np.int64).astype(dtype)
    if rng.random() < 0.5:
        array = (array % 200).astype(dtype)
    if array.dtype.kind == "f" and rng.random() < 0.5:
        array.ravel()[0] = data.draw(st.sampled_from([np.nan, -0.0, np.inf, 0.5]))
    starts = [data.draw(st.integers(0, n - 1)) for n in shape]
    box = (*starts, *(data.draw(st.integers(1, n - at)) for n, at in zip(shape, starts, strict=True)))
    forms = [nifti(array)] if dtype != "uint32" else []
    for form in (*forms, chunked(array, data.draw(st.integers(2, 6)))):
        file = opened_file(memoryview(form), MAX_VOXELS)
        patch = Patch(cut_patch(file, box), MAX_VOXELS)
        assert patch.box == box
        assert patch.read(box).tobytes() == np.ascontiguousarray(file.read(box)).tobytes()


def test_chunks_are_sent_as_they_are_where_the_box_fills_them():
    array = RNG.integers(-99, 99, (32, 32, 32)).astype(np.int16)
    file = ChunkedFile(chunked(array, 16), MAX_VOXELS)
    assert b'"meta"' in cut_patch(file, (16, 0, 16, 16, 16, 16))
    assert b'"meta"' not in cut_patch(file, (8, 8, 8, 16, 16, 16))


# --- hostile files ----------------------------------------------------------------------------------------------------


def test_headers_that_lie_are_refused_before_anything_is_allocated():
    small = nifti(np.zeros((4, 4, 4), np.int16))
    lies = {
        "more than the": struct.pack("<8h", 3, 32767, 32767, 32767, 1, 1, 1, 1),
        "has shape": struct.pack("<8h", 3, -4, 4, 4, 1, 1, 1, 1),
        "dimensions": struct.pack("<8h", 9, 4, 4, 4, 1, 1, 1, 1),
    }
    for words, dim in lies.items():
        with pytest.raises(OpError, match=words):
            NiftiFile(small[:40] + dim + small[56:], MAX_VOXELS)
    with pytest.raises(OpError, match="type 32"):  # complex numbers
        NiftiFile(small[:70] + struct.pack("<h", 32) + small[72:], MAX_VOXELS)
    with pytest.raises(OpError, match="begin at byte"):
        NiftiFile(small[:108] + struct.pack("<f", float("nan")) + small[112:], MAX_VOXELS)
    for cut in (0, 3, 200, 350, len(small) - 1):
        with pytest.raises(OpError):
            ops.DecodeVolume().apply(small[:cut])
    with pytest.raises(OpError, match=r"channels=1|expected 2"):
        ops.DecodeVolume(channels=2).apply(small)


def test_a_gzip_bomb_costs_no_more_than_what_the_header_promises():
    header = nifti(np.zeros((4, 4, 4), np.int16))
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = deflate.compress(header) + b"".join(deflate.compress(bytes(1 << 20)) for _ in range(256)) + deflate.flush()
    start_s = time.process_time()
    file = NiftiFile(bomb, MAX_VOXELS)
    with pytest.raises(OpError, match="after the voxels"):
        file.read(file.header.whole)
    assert time.process_time() - start_s < 1.0  # a quarter of a gigabyte takes longer
    many = zlib.compress(b"", wbits=31) * 70_000
    with pytest.raises(OpError):
        NiftiFile(many, MAX_VOXELS)


def test_gzip_files_of_several_members_are_read_and_a_flipped_bit_is_found():
    array = RNG.integers(0, 9, (20, 20, 20)).astype(np.int16)
    plain = nifti(array)
    pieces = b"".join(zlib.compress(plain[at : at + 900], wbits=31) for at in range(0, len(plain), 900))
    file = NiftiFile(pieces + bytes(50), MAX_VOXELS)
    assert np.array_equal(file.read(file.header.whole)[0], array)
    packed = nifti(array, compressed=True)
    damaged = packed[:-6] + bytes([packed[-6] ^ 1]) + packed[-5:]  # the checksum
    with pytest.raises(OpError, match="gzip stream is damaged"):
        NiftiFile(damaged, MAX_VOXELS).read((0, 0, 0, 1, 1, 1))


def test_zarr_files_that_cannot_be_read_here_say_why(tmp_path):
    array = np.zeros((4, 4, 4), np.int16)
    good = chunked(array + 1, 4)

    def with_meta(**changes):
        with zipfile.ZipFile(io.BytesIO(good)) as file:
            meta, chunk = json.loads(file.read("zarr.json")), file.read("c/0/0/0")
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as file:
            file.writestr("zarr.json", json.dumps(meta | changes))
            file.writestr("c/0/0/0", chunk)
        return out.getvalue()

    cases = {
        "not a Zarr 3 array": {"zarr_format": 2},
        "coded by": {"codecs": [{"name": "bytes"}, {"name": "sharding_indexed"}]},
        "type 'complex64'": {"data_type": "complex64"},
        "more than the": {"shape": [1 << 20] * 3},
        "dimensions": {"shape": [4, 4]},
        "does not describe an array": {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 4, 4]}}},
        "chunks of": {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1 << 10] * 3}}},
    }
    for words, changes in cases.items():
        with pytest.raises(OpError, match=words):
            ChunkedFile(with_meta(**changes), MAX_VOXELS)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zarr.json", "{}")
    with pytest.raises(OpError, match="compressed by zip"):
        ChunkedFile(out.getvalue(), MAX_VOXELS)
    flipped = bytearray(good)
    flipped[good.index(b"c/0/0/0") + 30] ^= 1
    with pytest.raises(OpError, match="checksum"):
        ChunkedFile(bytes(flipped), MAX_VOXELS).read((0, 0, 0, 1, 1, 1))


def test_labels_have_to_be_classes():
    assert as_label(np.array([[[[0.0, 255.0]]]]), NiftiFile(nifti(np.zeros((1, 1, 1))), 9).header).dtype == np.uint8
    for wrong in (0.5, -1.0, 256.0, np.nan):
        file = NiftiFile(nifti(np.full((2, 2, 2), wrong, np.float32)), MAX_VOXELS)
        with pytest.raises(OpError, match=r"whole numbers in 0 … 255"):
            as_label(file.read(file.header.whole), file.header)


def _mutated(data: bytes, rng: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        what = rng.random()
        at = rng.randrange(len(made)) if rng.random() < 0.5 else rng.randrange(min(len(made), 400))
        if what < 0.6:
            made[at] = rng.randrange(256)
        elif what < 0.8:
            made[at : at + 4] = rng.randbytes(4)
        elif what < 0.9:
            del made[at:]
        else:
            del made[at : at + rng.randrange(9)]
        if not made:
            return b""
    return bytes(made)


def _seeds():
    array = RNG.integers(-300, 300, (12, 10, 9)).astype(np.int16)
    file = ChunkedFile(chunked(array, 8), MAX_VOXELS)
    return {
        "nifti": nifti(array),
        "gzip": nifti(array, compressed=True),
        "chunked": chunked(array, 8),
        "patch of voxels": cut_patch(file, (1, 1, 1, 5, 5, 5)),
        "patch of chunks": cut_patch(file, (0, 0, 0, 8, 8, 8)),
    }


def _hammer(name: str, count: int) -> None:
    data, rng = _seeds()[name], random.Random(7)
    # A mutation may change the checksum of a zip member too; without checksums the decompressors are met head on.
    for _ in range(count):
        made = _mutated(data, rng)
        start_s = time.process_time()
        try:
            file = Patch(made, 1 << 20) if "patch" in name else opened_file(memoryview(made), 1 << 20)
            box = file.box if isinstance(file, Patch) else file.header.whole
            found = file.read(box)
            assert found.nbytes <= 8 << 20
        except Error:
            pass
        assert time.process_time() - start_s < 5.0


@pytest.mark.parametrize("name", ["nifti", "gzip", "chunked", "patch of voxels", "patch of chunks"])
def test_damaged_files_end_in_typed_errors(name):
    _hammer(name, 2_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nifti", "gzip", "chunked", "patch of voxels", "patch of chunks"])
def test_a_hundred_thousand_damaged_files_end_in_typed_errors(name):
    _hammer(name, 100_000)
