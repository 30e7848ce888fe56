"""Each codec on its own: what it takes, what it gives back, and what it refuses."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from sophon.codec import codec_named, jxl
from sophon.codec.codec import AheadCodec
from sophon.codec.table import offered
from sophon.errors import ConfigError, OpError, PayloadError
from sophon.pipeline import ENCODED, Kind, Spec, spec_of
from tests.support.pictures import encode, photos, scene

JXL = ["jxl1", "jxl3"] if jxl.available() else []  # tests/codec/test_jxl.py says so where it skips them
EXACT = ["raw", "zstd", "webp", *JXL]
ON_VALUES = [*EXACT, "jpeg"]  # `window` needs to know the ops that follow; tests/codec/window and test_cuts have it
ANY_IMAGE = Spec(Kind.IMAGE, (None, None, 3))

tensors = st.one_of(
    hnp.arrays(np.uint8, hnp.array_shapes(min_dims=3, max_dims=3, max_side=12)),
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=3, max_dims=3, max_side=12), elements=st.floats(width=32)),
)
images = st.builds(
    lambda w, h, seed, mode: scene(w, h, seed).convert(mode),
    st.integers(1, 70),
    st.integers(1, 70),
    st.integers(0, 9),
    st.sampled_from(["RGB", "L"]),
)


def _equal(one, two):
    assert type(one) is type(two) or (isinstance(one, Image.Image) and isinstance(two, Image.Image))
    if isinstance(one, Image.Image):
        assert (one.mode, one.size) == (two.mode, two.size)
    if isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (two.dtype, two.shape)
    assert (one if isinstance(one, bytes) else one.tobytes()) == (two if isinstance(two, bytes) else two.tobytes())


@pytest.mark.parametrize("name", EXACT)
@given(value=st.one_of(tensors, images, st.binary(max_size=300)))
@settings(max_examples=120, deadline=None)
def test_exact_codecs_give_back_the_same_bits(name, value):
    codec = codec_named(name)
    spec = spec_of(value)
    if codec.fits(spec):
        assert codec.exact
        payload = codec.encode(value)
        _equal(codec.decode(payload, spec), value)
        _equal(codec.decode(memoryview(payload), Spec(spec.kind, (None,) * len(spec.shape), spec.dtype)), value)


def test_picture_codecs_take_pictures_only_and_raw_and_zstd_take_all():
    tensor = Spec(Kind.TENSOR, (3, 4, 4), "float32")
    assert all(codec_named(n).fits(ANY_IMAGE) for n in ON_VALUES)
    assert [n for n in ON_VALUES if codec_named(n).fits(tensor)] == ["raw", "zstd"]
    assert [n for n in ON_VALUES if codec_named(n).fits(ENCODED)] == ["raw", "zstd"]
    assert not any(codec_named(n).fits(Spec(Kind.OBJECT, (), "object")) for n in ON_VALUES)
    assert not codec_named("webp").fits(Spec(Kind.IMAGE, (20, 16_384, 3)))


def test_the_layout_of_raw_is_fixed():
    assert codec_named("raw").encode(b"file") == b"file"
    assert codec_named("raw").encode(Image.new("RGB", (2, 1), (1, 2, 3))) == bytes.fromhex(
        "01 00 03 00  01000000 02000000 03000000  010203 010203"
    )
    assert codec_named("raw").encode(np.ones((1, 1, 2), np.float32)) == bytes.fromhex(
        "02 01 03 00  01000000 01000000 02000000  0000803f 0000803f"
    )


def test_the_layout_of_zstd_is_a_header_a_flag_and_a_frame():
    import pyarrow as pa

    payload = codec_named("zstd").encode(b"some file")
    assert payload[:9] == bytes.fromhex("00 00 01 00  09000000  00")
    assert pa.Codec("zstd").decompress(payload[9:], decompressed_size=9, asbytes=True) == b"some file"


def test_zstd_shuffles_floats_where_it_helps_and_only_there():
    import pyarrow as pa

    smooth = np.sin(np.linspace(0, 40, 30_000, dtype=np.float32)).reshape(3, 100, 100)
    pixels = np.asarray(scene(100, 100), np.float32).transpose(2, 0, 1) / np.float32(255)
    for tensor, shuffled in ((smooth, 1), (pixels, 0)):
        payload = codec_named("zstd").encode(tensor)
        assert payload[16] == shuffled
        frame = pa.Codec("zstd").decompress(payload[17:], decompressed_size=120_000, asbytes=True)
        expected = tensor.reshape(-1).view(np.uint8).reshape(-1, 4).T if shuffled else tensor
        assert frame == expected.tobytes()
    assert len(codec_named("zstd").encode(smooth)) < 0.8 * len(pa.Codec("zstd").compress(smooth.tobytes()))


def test_the_layout_of_webp_is_a_channel_count_and_a_lossless_file():
    payload = codec_named("webp").encode(scene(9, 7).convert("L"))
    assert payload[0] == 1
    assert payload[1:5] + payload[9:17] == b"RIFFWEBPVP8L"


def test_nothing_but_pixels_crosses_the_link():
    out = io.BytesIO()
    exif = Image.Exif()
    exif[0x010E] = "a private note"
    scene(40, 30).save(out, "JPEG", exif=exif, comment=b"a private comment", icc_profile=b"a private profile")
    picture = Image.open(io.BytesIO(out.getvalue()))
    for name in ON_VALUES:
        assert b"private" not in codec_named(name).encode(picture), name


@pytest.mark.parametrize("name", ON_VALUES)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_picture_that_has_crossed_the_link_is_a_plain_one(name, mode):
    """Not one of the payload's kind of file: torchvision looks up settings by class."""
    codec, value = codec_named(name), scene(40, 30).convert(mode)
    found = codec.decode(codec.encode(value), spec_of(value))
    assert type(found) is Image.Image
    assert found.info == {}


def test_every_codec_is_tested_here_or_looks_ahead():
    ahead = [name for name in offered() if isinstance(codec_named(name), AheadCodec)]
    of_sounds = [name for name in offered() if name == "flac"]  # tests/codec/audio
    assert sorted([*ON_VALUES, *ahead, *of_sounds]) == sorted(offered())


def test_jpeg_is_marked_inexact_and_takes_a_quality():
    codec = codec_named("jpeg:70")
    assert (codec.exact, codec.name, codec_named("jpeg").name) == (False, "jpeg:70", "jpeg:95")
    picture = scene(64, 48)
    small, large = codec.encode(picture), codec_named("jpeg:95").encode(picture)
    assert len(small) < len(large)
    back = codec.decode(small, spec_of(picture))
    assert back.size == picture.size
    assert back.tobytes() != picture.tobytes()
    assert codec.decode(codec.encode(picture.convert("L")), Spec(Kind.IMAGE, (48, 64, 1))).mode == "L"


@pytest.mark.parametrize("name", ["gzip", "jpeg:", "jpeg:0", "jpeg:101", "jpeg:x", "jpeg:9999", "raw:1", ""])
def test_unknown_codecs_are_refused(name):
    if name == "jpeg:":
        assert codec_named(name).name == "jpeg:95"
        return
    with pytest.raises(ConfigError):
        codec_named(name)


def test_a_picture_too_large_for_webp_is_refused_with_a_remedy():
    with pytest.raises(OpError, match=r"too large for WebP.*Use another codec"):
        codec_named("webp").encode(Image.new("RGB", (16_384, 1)))


@pytest.mark.parametrize("name", ON_VALUES)
def test_a_payload_of_another_shape_than_the_pipeline_says_is_refused(name):
    codec = codec_named(name)
    payload = codec.encode(scene(20, 10))
    for wrong in (
        Spec(Kind.IMAGE, (10, 21, 3)),
        Spec(Kind.IMAGE, (10, 20, 1)),
        Spec(Kind.TENSOR, (10, 20, 3)),
        Spec(Kind.TENSOR, (10, 20, 3), "float32"),
    ):
        with pytest.raises(PayloadError, match=r"expected .*, got "):
            codec.decode(payload, wrong)


@pytest.mark.parametrize("name", ["raw", "zstd"])
def test_a_header_that_declares_more_than_fits_is_refused_before_anything_is_allocated(name):
    bomb = bytes.fromhex("02 01 03 00") + (2**31).to_bytes(4, "little") * 3
    with pytest.raises(PayloadError, match="expected at most 1,073,741,824 bytes"):
        codec_named(name).decode(bomb, Spec(Kind.TENSOR, (None, None, None), "float32"))


def test_a_webp_that_declares_a_huge_picture_is_refused_by_its_header():
    payload = bytearray(codec_named("webp").encode(scene(8, 8)))
    payload[22:26] = (0x3FFF | 0x3FFF << 14).to_bytes(4, "little")
    with pytest.raises(PayloadError):
        codec_named("webp").decode(bytes(payload), ANY_IMAGE)


def _mutations(seed: int, payloads: list[bytes], count: int):
    rng = np.random.default_rng(seed)
    for i in range(count):
        data = bytearray(payloads[i % len(payloads)])
        how = rng.integers(4)
        if how == 0:
            data = data[: rng.integers(len(data) + 1)]
        elif how == 1:
            data += rng.bytes(int(rng.integers(1, 40)))
        else:
            reach = min(len(data), 40 if how == 2 else len(data))
            for at in rng.integers(0, reach, int(rng.integers(1, 6))):
                data[at] = rng.integers(256)
        yield bytes(data)


@pytest.mark.parametrize("name", ON_VALUES)
def test_hostile_payloads_end_in_a_payload_error_and_nothing_else(name):
    codec = codec_named(name)
    values = [scene(20, 10), scene(33, 17).convert("L"), np.ones((3, 5, 4), np.float32), b"some file"]
    values = [v for v in values if codec.fits(spec_of(v))]
    specs = [spec_of(v) for v in values]
    for i, payload in enumerate(_mutations(7, [codec.encode(v) for v in values], 2000)):
        spec = specs[i % len(specs)]
        loose = Spec(spec.kind, (None,) * len(spec.shape), spec.dtype)
        try:
            value = codec.decode(payload, loose)
        except PayloadError:
            continue
        assert spec_of(value).kind is spec.kind


def test_exact_codecs_on_real_crops():
    for data in photos()[:4]:
        picture = Image.open(io.BytesIO(data)).convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
        sizes = {}
        for name in EXACT:
            payload = codec_named(name).encode(picture)
            _equal(codec_named(name).decode(payload, ANY_IMAGE), picture)
            sizes[name] = len(payload)
        assert sizes["webp"] < sizes["raw"]


def test_raw_does_not_copy_a_file():
    data = encode(scene(30, 20), "png")
    assert codec_named("raw").encode(data) is data
