"""Files that were made to keep a decoder busy end in an error, before anything is decoded."""

import io
import struct
import time
import zlib

import numpy as np
import pytest
from PIL import Image, ImageFile

from sophon.codec import Cut, finish_payload, make_payload
from sophon.errors import Error, OpError
from sophon.pipeline import Key, Pipeline, ops
from sophon.pipeline.ops.decode import check_jpeg
from tests.support.liar import jpeg, many_scans, of_claimed_size, png_of_chunks
from tests.support.pictures import FORMS, encode, scene

BOMBS = {
    "zeros": lambda: b"\xff\xd8\xff" + bytes(64 << 20),
    "padding": lambda: b"\xff\xd8" + b"\xff" * (64 << 20),
    "padding after a segment": lambda: b"\xff\xd8\xff\xe1\x00\x02" + bytes(64 << 20),
    "segments": lambda: b"\xff\xd8" + b"\xff\xe1\x00\x02" * (16 << 20),
    "scans": lambda: many_scans(6000, 6000, 2000),
    "a large picture in few bytes": lambda: of_claimed_size(13300, 13400),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("form", [bytes, memoryview])
def test_a_bomb_is_refused_at_once(name, form):
    data = form(BOMBS[name]())
    begin_s = time.thread_time()
    with pytest.raises(OpError, match=r"the JPEG file (declares|has)"):
        ops.Decode().apply(data)
    assert time.thread_time() - begin_s < 0.5  # of which a regular expression takes most


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("way", ["raw", "window", "a window of it"])
@pytest.mark.matrix(every=3)
def test_none_gets_further_where_a_part_of_it_would_be_cut_out(name, way):
    recipe = Pipeline([ops.Decode(), ops.RandomResizedCrop(32, scale=(0.01, 0.02)), ops.ToTensor()])
    key, data = Key(0, 0, 0), BOMBS[name]()
    begin_s = time.thread_time()
    attempts = {
        "raw": lambda: finish_payload(recipe, data, key, Cut(0)),
        "window": lambda: make_payload(recipe, data, key, Cut(0, "window")),
        "a window of it": lambda: finish_payload(
            recipe, bytes(8) + b"\x7f\xff\x7f\xff" * 2 + data, key, Cut(0, "window")
        ),
    }
    with pytest.raises(Error):
        attempts[way]()
    assert time.thread_time() - begin_s < 1


@pytest.mark.parametrize("form", [form for form, (_, kind, _) in FORMS.items() if kind == "JPEG"])
def test_real_files_are_no_bombs(form):
    data = encode(scene(120, 90), form)
    assert ops.Decode().apply(data).tobytes() == Image.open(io.BytesIO(data)).convert("RGB").tobytes()


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 1}])
def test_neither_are_large_blank_pages(options):
    Image.MAX_IMAGE_PIXELS, before = None, Image.MAX_IMAGE_PIXELS
    try:
        assert ops.Decode().open(jpeg(5000, 4000, **options)).size == (5000, 4000)
    finally:
        Image.MAX_IMAGE_PIXELS = before


def test_a_truncated_photo_is_what_pillow_makes_of_it():
    data = encode(scene(300, 200), "jpeg 4:2:0")[:3000] + b"\xff\xd9"
    assert ops.Decode().apply(data).tobytes() == Image.open(io.BytesIO(data)).convert("RGB").tobytes()


def test_the_look_costs_next_to_nothing():
    data = encode(scene(500, 400), "jpeg 4:2:0")
    recipe = Pipeline([ops.Decode()])
    looks, decodes = [], []
    for _ in range(30):
        begin_s = time.thread_time()
        check_jpeg(data)
        between_s = time.thread_time()
        recipe.ops[0].apply(data)
        looks.append(between_s - begin_s)
        decodes.append(time.thread_time() - between_s)
    assert np.median(looks) < 0.05 * np.median(decodes)


_EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\nshowpage\n%%EOF\n"


def test_no_other_program_is_started_for_a_file(tmp_path, monkeypatch):
    ran = tmp_path / "ran"
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(OpError, match="EPS image is a program that only an interpreter can render"):
        ops.Decode().apply(_EPS)
    assert not ran.exists()


@pytest.mark.parametrize(
    "form", ["GIF", "PNG", "BMP", "PPM", "TIFF", "WEBP", "TGA", "JPEG2000", "ICO", "PCX", "SGI", "QOI"]
)
def test_all_formats_that_pillow_decodes_itself_are_opened_as_pillow_opens_them(form):
    out = io.BytesIO()
    Image.fromarray(np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)).save(out, form)
    with Image.open(io.BytesIO(out.getvalue())) as expected:
        assert ops.Decode().apply(out.getvalue()).tobytes() == expected.convert("RGB").tobytes()


def test_a_format_that_was_registered_in_this_process_is_opened(monkeypatch):
    class Own(ImageFile.ImageFile):
        format = "OWN"

        def _open(self):
            self._mode, self._size = "L", (1, 1)
            self.tile = [ImageFile._Tile("raw", (0, 0, 1, 1), 3, "L")]

    monkeypatch.setattr(Image, "ID", [*Image.ID])
    monkeypatch.setattr(Image, "OPEN", {**Image.OPEN})
    Image.register_open("OWN", Own, lambda prefix: prefix.startswith(b"own"))
    assert ops.Decode("L").apply(b"own\x07").getpixel((0, 0)) == 7


def test_a_png_file_of_very_many_chunks_is_refused_at_once():
    began_s = time.process_time()
    with pytest.raises(OpError, match="more than 4,096 chunks besides its pixels"):
        ops.Decode().apply(png_of_chunks(1_000_000))
    assert time.process_time() - began_s < 1.0  # Pillow takes longer, and keeps all of them


def _icon(kind, *files):
    """Return an icon with PNG files in it, whatever they are."""
    if kind == "ICNS":
        blocks = b"".join(b"ic07" + struct.pack(">I", 8 + len(file)) + file for file in files)
        return b"icns" + struct.pack(">I", 8 + len(blocks)) + blocks
    at, rows = 6 + 16 * len(files), []
    for file in files:
        rows.append(struct.pack("<BBBBHHII", 8, 8, 0, 0, 1, 24, len(file), at))
        at += len(file)
    return struct.pack("<HHH", 0, 1, len(files)) + b"".join(rows) + b"".join(files)


@pytest.mark.parametrize("kind", ["ICO", "ICNS"])
def test_so_is_an_icon_with_one(kind):
    start_s = time.thread_time()
    with pytest.raises(OpError, match="more than 4,096 chunks besides its pixels"):
        ops.Decode().apply(_icon(kind, png_of_chunks(1_000_000)))
    with pytest.raises(OpError, match="more than 4,096 chunks besides its pixels"):
        ops.Decode().apply(_icon(kind, *[png_of_chunks(1_000)] * 8))
    with pytest.raises(OpError, match="more than 64 pictures"):
        ops.Decode().apply(_icon(kind, *[png_of_chunks(1)] * 100))
    assert time.thread_time() - start_s < 5
    assert ops.Decode().apply(_icon(kind, png_of_chunks(0))).size == (8, 8)


def test_a_png_file_of_many_chunks_of_pixels_is_opened():
    data = png_of_chunks(0)
    at = data.index(b"IDAT") - 4
    size = int.from_bytes(data[at : at + 4], "big")
    pixels, rest = data[at + 8 : at + 8 + size], data[at + 12 + size :]
    chunks = (pixels[i : i + 1] for i in range(size))
    split = b"".join(
        len(c).to_bytes(4, "big") + b"IDAT" + c + zlib.crc32(b"IDAT" + c).to_bytes(4, "big") for c in chunks
    )
    empty = b"\0\0\0\0IDAT" + zlib.crc32(b"IDAT").to_bytes(4, "big")
    many = data[:at] + split + empty * 5_000 + rest
    assert ops.Decode().apply(many).tobytes() == ops.Decode().apply(data).tobytes()
