"""Which files are eligible, and that everything else is refused by name."""

import io
import pickle
import struct

import pytest
from PIL import Image

from sophon.codec.window import NotWindowable, available, build_index, cut, parse
from sophon.errors import Error
from tests.codec.window.jpeg_writer import JFIF, Picture, segment
from tests.codec.window.support import SAMPLINGS, needs_kernel, scene, small_files

GOOD = Picture(50, 40).write()


def refused(data: bytes) -> str:
    with pytest.raises(NotWindowable) as caught:
        parse(data)
    if available():
        with pytest.raises(NotWindowable):
            build_index(data)
        with pytest.raises(NotWindowable):
            cut(data, (0, 0, 1, 1))
    return caught.value.reason


def patched(marker: int, offset: int, *values: int) -> bytes:
    """Return the good file with bytes of a segment changed; offset 0 is the first after the length."""
    at = GOOD.index(bytes((0xFF, marker))) + 4 + offset
    return GOOD[:at] + bytes(values) + GOOD[at + len(values) :]


def test_a_header_says_what_the_file_holds():
    header = parse(Picture(50, 41, SAMPLINGS["mixed 2×2, 2×1 and 1×2"], restart=3).write())
    assert (header.width, header.height) == (50, 41)
    assert [(c.h, c.v) for c in header.components] == [(2, 2), (2, 1), (1, 2)]
    assert [(c.quantisation, c.dc, c.ac) for c in header.components] == [(0, 0, 0), (1, 1, 1), (1, 1, 1)]
    assert (header.mcu_width, header.mcu_height) == (16, 16)
    assert header.mcus == (4, 3)
    assert header.restart_interval == 3
    assert header.jfif
    assert header.adobe is None


def test_a_lone_component_has_one_block_in_an_mcu_whatever_its_factors():
    header = parse(Picture(50, 41, ((2, 2),)).write())
    assert (header.mcu_width, header.mcu_height) == (8, 8)
    assert header.mcus == (7, 6)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(wrap):
    assert parse(wrap(GOOD)) == parse(GOOD)


def test_the_refusal_is_an_error_of_ours_and_survives_pickling():
    error = NotWindowable("progressive")
    assert isinstance(error, Error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "no window: progressive; send the whole file instead"


@pytest.mark.parametrize("form", ["PNG", "GIF", "BMP", "WEBP", "TIFF"])
def test_other_formats(form):
    out = io.BytesIO()
    scene(20, 20).save(out, form)
    assert refused(out.getvalue()) == "it is not a JPEG file"


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xff\xd8", b"\xff\xd8\xff", b"\xff\xd8\xff\xe0\x00", bytes(100)])
def test_hardly_anything(data):
    refused(data)


@pytest.mark.parametrize(
    ("marker", "reason"),
    [
        (0xC3, "it is lossless"),
        (0xC9, "it uses arithmetic coding"),
        (0xCA, "it uses arithmetic coding"),
        (0xCB, "it is lossless"),
        (0xC5, "it is hierarchical"),
        (0xDE, "it is hierarchical"),
        (0xCC, "it uses arithmetic coding"),
        (0xDC, "it has a DNL marker"),
        (0xD8, "it has an unexpected marker 0xD8"),
        (0x01, "it has an unexpected marker 0x01"),
        (0xF3, "it has an unexpected marker 0xF3"),
    ],
)
def test_other_kinds_of_jpeg(marker, reason):
    at = GOOD.index(b"\xff\xc0")
    assert refused(GOOD[: at + 1] + bytes((marker,)) + GOOD[at + 2 :]) == reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (patched(0xC0, 0, 12), "it has 12 bits per sample"),
        (patched(0xC0, 1, 0, 0), "the frame has no height or width"),
        (patched(0xC0, 3, 0, 0), "the frame has no height or width"),
        (patched(0xC0, 1, 0xFF, 0xFF, 0x00, 0x10), "it has 16 × 65535 pixels, more than Pillow decodes without"),
        (patched(0xC0, 1, 0x7F, 0xFF, 0x7F, 0xFF), "it has 32767 × 32767 pixels, more than Pillow decodes"),
        (patched(0xC0, 5, 2), "the frame is damaged"),
        (patched(0xC0, 7, 0x50), "sampling factors are out of range"),
        (patched(0xC0, 7, 0x02), "sampling factors are out of range"),
        (patched(0xC0, 7, 0x33, 0x00, 0x02, 0x22), "sampling factors do not divide the largest one"),
        (patched(0xC0, 7, 0x44), "an MCU has more than 10 blocks"),
        (patched(0xC0, 8, 3), "a quantisation table is missing"),
        (patched(0xC0, 6, 2), "the components are out of order"),
        (patched(0xDA, 2, 0x02), "a Huffman table is missing"),
        (patched(0xDA, 2, 0x20), "a Huffman table is missing"),
        (patched(0xDA, 0, 2), "a scan header is damaged"),
        (patched(0xC4, 0, 0x04), "a Huffman table is damaged"),
        (patched(0xC4, 0, 0x20), "a Huffman table is damaged"),
        (patched(0xC4, 1, 0xFF, 0xFF), "a Huffman table is damaged"),
        (patched(0xC4, 17, 16), "a DC table has categories above 15"),
        (patched(0xDB, 0, 0x20), "a quantisation table is damaged"),
        (patched(0xDB, 0, 0x04), "a quantisation table is damaged"),
        (patched(0xDB, 0, 0x10), "a quantisation table is damaged"),
        (patched(0xE0, 4, 1), "a JFIF segment is damaged"),
    ],
)
def test_damaged_headers(data, reason):
    assert refused(data).startswith(reason)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ((0xE0, b"JFIF\0\1"), "a JFIF segment is damaged"),
        ((0xEE, b"Adobe\0\1"), "an Adobe segment is damaged"),
        ((0xE2, b"ICC_PROFILE\0\1"), "an ICC segment is damaged"),
        ((0xDD, b"\0"), "a restart interval is damaged"),
    ],
)
def test_damaged_segments(body, reason):
    assert refused(Picture(50, 40, application=(body,)).write()) == reason


def test_two_components():
    data = Picture(50, 40, ((1, 1), (1, 1))).write()
    assert refused(data) == "it has 2 components"


def test_two_frames():
    at, end = GOOD.index(b"\xff\xc0"), GOOD.index(b"\xff\xc4")
    assert refused(GOOD[:end] + GOOD[at:end] + GOOD[end:]) == "it has two frames"


def test_a_scan_of_some_components_only():
    at = GOOD.index(b"\xff\xda")
    end = at + 2 + struct.unpack_from(">H", GOOD, at + 2)[0]
    assert refused(GOOD[:at] + segment(0xDA, bytes((1, 1, 0, 0, 63, 0))) + GOOD[end:]) == "it has several scans"


def test_bytes_between_segments():
    at = GOOD.index(b"\xff\xc0")
    assert refused(GOOD[:at] + b"\0" + GOOD[at:]) == "there are bytes between the segments of the header"


@needs_kernel
def test_no_table_is_a_prefix_code_if_it_has_too_many_codes_or_one_of_all_ones():
    at = GOOD.index(b"\xff\xc4") + 5
    assert sum(GOOD[at : at + 16]) == 12
    for counts in (bytes((2, 10)) + bytes(14), bytes((1, 2, 9)) + bytes(13)):
        data = GOOD[:at] + counts + GOOD[at + 16 :]
        with pytest.raises(NotWindowable, match="not a prefix code"):
            cut(data, (0, 0, 1, 1))
        with pytest.raises(OSError, match="broken data stream"):
            Image.open(io.BytesIO(data)).load()


@needs_kernel
def test_every_truncation_is_refused():
    for data in small_files():
        for size in range(len(data) - 1):
            with pytest.raises(NotWindowable):
                cut(data[:size], (0, 0, 1, 1))


@needs_kernel
def test_metadata_that_pillow_does_not_read_is_refused():
    # An image resource that ends within its name makes Pillow give up on the whole file.
    data = Picture(50, 40, application=((0xE0, JFIF), (0xED, b"Photoshop 3.0\x008BIM\x04\x04"))).write()
    with pytest.raises(OSError, match="cannot identify"):
        Image.open(io.BytesIO(data))
    with pytest.raises(NotWindowable, match="metadata"):
        cut(data, (0, 0, 1, 1))
    with pytest.raises(NotWindowable, match="metadata"):
        build_index(data)
