"""Payloads of samples with targets: masks are cut down no further than the crop needs, and nothing is trusted."""

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import EpsImagePlugin, Image

from sophon.bundle import pack
from sophon.codec.cut import Cut, make_payload
from sophon.codec.targets import mask_box, read_mask, received_mask, taken_apart
from sophon.errors import OpError, PayloadError
from sophon.pipeline import Key, Pipeline, ops
from tests.support.pictures import encode, scene

CROPS = [
    [ops.CenterCrop(20)],
    [ops.RandomCrop((17, 31))],
    [ops.RandomResizedCrop(16)],
    [ops.Resize(40), ops.RandomCrop(24)],
    [ops.Resize((200, 33), "nearest"), ops.RandomHorizontalFlip(), ops.CenterCrop((90, 20))],
    [ops.RandomHorizontalFlip(), ops.RandomResize(30, 300), ops.RandomVerticalFlip(), ops.RandomCrop(25)],
    [ops.RandomShortestSize((30, 200), 400, "box"), ops.RandomCrop(28)],
    [ops.Resize(50), ops.Resize(150), ops.RandomCrop(60)],
]


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


def unknown_dds():
    """Return a file for which Pillow raises NotImplementedError when it is opened."""
    file = io.BytesIO()
    Image.new("RGBA", (8, 8)).save(file, "DDS", pixel_format="DXT5")
    return file.getvalue().replace(b"DXT5", b"XXXX")


def nearest(mask, size):
    """Return what torch's nearest neighbours give: see `torch.nn.functional.interpolate`."""
    rows, columns = (
        np.minimum((np.arange(to) * np.float32(side / to)).astype(np.int64), side - 1)
        for side, to in zip(mask.shape, size, strict=True)
    )
    return mask[rows][:, columns]


def followed(pipeline, key, mask):
    """Return a mask after the ops, by plain NumPy, given what they draw."""
    from sophon.pipeline import Rng
    from sophon.pipeline.spec import image

    spec = image(*mask.shape, 3)
    for position, op in enumerate(pipeline.ops[1:], 1):
        drawn = op.draw(Rng(key, position), spec) if op.random else None
        made = op.made(spec, drawn)
        box = op.box_needed(spec, drawn)
        if box is not None:
            top, left, height, width = box
            mask = mask[top : top + height, left : left + width]
        elif isinstance(op, ops.RandomHorizontalFlip | ops.RandomVerticalFlip):
            mask = np.flip(mask, 1 if isinstance(op, ops.RandomHorizontalFlip) else 0) if drawn else mask
        mask = nearest(mask, (made.height, made.width))
        spec = made
    return mask


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(CROPS), st.integers(35, 300), st.integers(35, 300), st.integers(0, 1000), st.integers(0, 1 << 16)
)
def test_the_part_of_a_mask_holds_all_that_the_crop_needs(steps, height, width, epoch, seed):
    pipeline, key = Pipeline([ops.Decode(), *steps]), Key(1, epoch, 2)
    try:
        box = mask_box(pipeline, key, (height, width), None)
        mask = np.random.default_rng(seed).integers(1, 256, (height, width)).astype(np.uint8)
        whole = followed(pipeline, key, mask)
    except OpError:
        return  # the crop does not fit
    if box is None:
        return
    top, left, box_height, box_width = box
    part = np.zeros_like(mask)
    part[top : top + box_height, left : left + box_width] = mask[top : top + box_height, left : left + box_width]
    assert np.array_equal(followed(pipeline, key, part), whole)


def test_a_mask_is_cut_down_where_the_crop_is_made_and_nowhere_else():
    pipeline = Pipeline(
        [ops.Decode(), ops.CenterCrop(20), ops.PILToTensor()], [("mask", "mask"), ("boxes", "boxes:xyxy")]
    )
    mask = np.random.default_rng(1).integers(0, 9, (96, 128)).astype(np.uint8)
    data = pack([encode(scene(128, 96), "jpeg 4:2:0"), png(mask), b"0123"])
    for cut in ("1:webp", "2:webp", "3:raw", "0:window"):
        payload = make_payload(pipeline, data, Key(0, 0, 0), Cut.parse(cut))
        _, size, (sent, boxes) = taken_apart(pipeline, payload, False)
        assert (size, bytes(boxes)) == ((96, 128), b"0123")
        found = received_mask(sent, size, False)
        if cut == "1:webp":
            assert np.array_equal(found, mask)
            continue
        assert len(sent) < len(png(mask)) / 4
        assert np.array_equal(found[38:58, 54:74], mask[38:58, 54:74])
        assert not found[:30].any()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, bool])
def test_masks_keep_their_numbers(dtype):
    mask = (np.arange(60 * 70).reshape(60, 70) % (2 if dtype is bool else 256 if dtype is np.uint8 else 60000)).astype(
        dtype
    )
    file = io.BytesIO()
    Image.fromarray(mask).save(file, "TIFF")
    assert np.array_equal(read_mask(file.getvalue(), (60, 70)), mask)
    pipeline = Pipeline([ops.Decode(), ops.CenterCrop(20)], [("mask", "mask")])
    data = pack([encode(scene(70, 60), "jpeg 4:4:4"), file.getvalue()])
    payload = make_payload(pipeline, data, Key(0, 0, 0), Cut(2, "webp"))
    _, size, (sent,) = taken_apart(pipeline, payload, False)
    assert np.array_equal(received_mask(sent, size, False)[20:40, 25:45], mask[20:40, 25:45])


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (png(np.zeros((5, 6), np.uint8)), "the mask has 6×5 pixels, but its picture has 70×60"),
        (png(np.zeros((60, 70, 3), np.uint8)), "the mask has mode RGB, expected one channel"),
        (b"no picture", "the mask cannot be decoded"),
        (png(np.zeros((60, 70), np.uint8))[:60], "the mask cannot be decoded"),
        (b"", "the mask cannot be decoded"),
        (unknown_dds(), "the mask cannot be decoded"),
    ],
)
def test_what_is_no_mask_of_the_picture_is_refused_on_either_side(mask, words):
    with pytest.raises(OpError, match=words):
        received_mask(memoryview(mask), (60, 70), True)
    pipeline = Pipeline([ops.Decode(), ops.CenterCrop(20)], [("mask", "mask")])
    with pytest.raises(OpError, match=words):
        make_payload(pipeline, pack([encode(scene(70, 60), "jpeg 4:4:4"), mask]), Key(0, 0, 0), Cut(2, "webp"))


def _part(top, left, array):
    return struct.pack("<BII", 1, top, left) + png(array)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\x02abc",
        b"\x01\x00",
        _part(0, 0, np.zeros((61, 3), np.uint8)),
        _part(59, 0, np.zeros((2, 3), np.uint8)),
        _part(0, 2**32 - 1, np.zeros((2, 3), np.uint8)),
        _part(0, 0, np.zeros((2, 3, 3), np.uint8)),
        _part(0, 0, np.zeros((9, 9), np.uint8))[:40],
    ],
)
def test_a_part_that_no_node_of_ours_sends_is_a_payload_error(sent):
    with pytest.raises(PayloadError):
        received_mask(memoryview(sent), (60, 70), False)


def test_a_bundle_of_other_parts_is_a_payload_error():
    pipeline = Pipeline([ops.Decode()], [("mask", "mask")])
    for payload in (b"", pack([b"a", b"b"]), pack([b"a", b"1234", b"c"]), pack([b"a", b"12345678", b"c", b"d"])):
        with pytest.raises(PayloadError):
            taken_apart(pipeline, payload, False)


def _claiming(width, height):
    """Return a PNG file that declares a size and has no pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", b""), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


_EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 70 60
%%EndComments
%ImageData: 70 60 8 1 0 1 1 "beginimage"
%%EOF
"""


@pytest.mark.parametrize("start", [b"\0", struct.pack("<BII", 1, 0, 0)], ids=["whole", "part"])
def test_a_mask_that_is_a_program_is_not_run(tmp_path, monkeypatch, start):
    ran, program = tmp_path / "ran", tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # Pillow looks for it once per process
    Image.open(io.BytesIO(_EPS)).close()  # Pillow knows the format
    with pytest.raises((OpError, PayloadError), match=r"is a program|damaged: an EPS"):
        received_mask(memoryview(start + _EPS), (60, 70), False)
    assert not ran.exists()


@pytest.mark.parametrize("start", [b"\0", struct.pack("<BII", 1, 0, 0)], ids=["whole", "part"])
def test_a_mask_of_billions_of_pixels_is_a_typed_error(start):
    with pytest.raises((OpError, PayloadError), match="exceeds limit"):
        received_mask(memoryview(start + _claiming(60_000, 60_000)), (60, 70), False)


@pytest.mark.parametrize("form", ["TIFF", "BMP", "JPEG"])
def test_a_part_of_a_mask_is_png(form):
    file = io.BytesIO()
    Image.new("L", (5, 4)).save(file, form)
    with pytest.raises(PayloadError, match="not a PNG"):
        received_mask(memoryview(struct.pack("<BII", 1, 0, 0) + file.getvalue()), (60, 70), False)
