"""Pictures in other modes than RGB and L: class ids, 16-bit numbers and alpha survive Decode, every op and every cut.

The oracle is Pillow for Decode, and torchvision on Pillow's picture for the ops.
"""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from sophon import Key, Pipeline, finish_payload, legal_cuts, make_payload, ops
from sophon.codec import layout
from sophon.errors import ConfigError, OpError, PayloadError
from sophon.pipeline.probe import digests
from sophon.pipeline.spec import MODES, OTHER_MODES, Kind
from tests.pipeline.test_pipeline import EXAMPLES
from tests.support.torchvision_import import import_torchvision

KEY = Key(3, 1, 7)
_RNG = np.random.default_rng(5)


def _picture(mode: str) -> Image.Image:
    if mode == "P":
        picture = Image.fromarray(_RNG.integers(0, 21, (37, 53), np.uint8)).convert("P")
        picture.putpalette(_RNG.integers(0, 256, 21 * 3, np.uint8).tobytes())
        return picture
    if mode == "I;16":
        return Image.fromarray(_RNG.integers(0, 65536, (37, 53), np.uint16))
    if mode == "I":
        return Image.fromarray(_RNG.integers(-(2**31), 2**31, (37, 53), np.int64).astype(np.int32))
    if mode == "F":
        return Image.fromarray(_RNG.normal(size=(37, 53)).astype(np.float32))
    bands = MODES[mode][0]
    return Image.merge(mode, [Image.fromarray(_RNG.integers(0, 256, (37, 53), np.uint8)) for _ in range(bands)])


def _file(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, "TIFF" if picture.mode in ("CMYK", "F", "I") else "PNG")
    return out.getvalue()


FILES = {mode: _file(_picture(mode)) for mode in MODES}


def _same(one: Image.Image, other: Image.Image) -> bool:
    same_palette = one.mode != "P" or one.getpalette("RGB") == other.getpalette("RGB")
    return (one.mode, one.size, one.tobytes()) == (other.mode, other.size, other.tobytes()) and same_palette


@pytest.mark.parametrize("mode", MODES)
def test_decode_gives_pillows_picture(mode):
    wanted = Image.open(io.BytesIO(FILES[mode]))
    wanted.load()
    assert wanted.mode == mode
    found = ops.Decode(mode=mode).apply(FILES[mode])
    assert _same(found, wanted)
    spec = ops.Decode(mode=mode).output(Pipeline([ops.Decode()]).specs[0])
    assert (spec.channels, spec.dtype) == MODES[mode]


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("P", "I;16")])
@pytest.mark.parametrize("file", ["RGB", "L", "P", "RGBA", "LA"])
def test_decode_converts_as_pillow_does(mode, file):
    assert _same(ops.Decode(mode=mode).apply(FILES[file]), Image.open(io.BytesIO(FILES[file])).convert(mode))


@pytest.mark.parametrize("mode", ["P", "I;16"])
def test_modes_that_keep_what_is_in_the_file_refuse_what_would_change(mode):
    gray = np.asarray(Image.open(io.BytesIO(FILES["L"])))
    assert np.array_equal(np.asarray(ops.Decode(mode=mode).apply(FILES["L"])), gray)
    for file in ("RGB", "RGBA", "P" if mode == "I;16" else "I;16"):
        with pytest.raises(OpError, match=f"is in mode {file}; converting it to mode {mode} would change its pixels"):
            ops.Decode(mode=mode).apply(FILES[file])


def test_numbers_of_16_bits_in_the_other_order_of_bytes():
    numbers = _RNG.integers(0, 65536, (5, 7), np.uint16)
    out = io.BytesIO()
    Image.frombytes("I;16B", (7, 5), numbers.astype(">u2").tobytes()).save(out, "TIFF")
    assert Image.open(io.BytesIO(out.getvalue())).mode == "I;16B"
    found = ops.Decode(mode="I;16").apply(out.getvalue())
    assert found.mode == "I;16"
    assert np.array_equal(np.asarray(found), numbers)


MOVES = (ops.RandomCrop(24), ops.RandomHorizontalFlip(0.7), ops.Resize(18, "nearest"), ops.PILToTensor())


@pytest.mark.parametrize("mode", OTHER_MODES)
@pytest.mark.parametrize(
    "steps",
    [
        MOVES,
        (ops.RandomResizedCrop(16), ops.PILToTensor()),
        (ops.Pad(3, fill=2), ops.CenterCrop((50, 40)), ops.RandomVerticalFlip(0.6)),
        (ops.CenterCrop(60), ops.Resize((20, 10))),
    ],
)
def test_every_cut_gives_the_same_bits(mode, steps):
    pipeline = Pipeline([ops.Decode(mode=mode), *steps])
    cuts = legal_cuts(pipeline)
    assert {cut.codec for cut in cuts} == {"raw", "zstd"}
    assert {cut.k for cut in cuts} == set(range(len(pipeline) + 1))
    for sample in range(3):
        key = Key(3, 0, sample)
        wanted = pipeline.run(FILES[mode], key)
        for cut in cuts:
            found = finish_payload(pipeline, make_payload(pipeline, FILES[mode], key, cut), key, cut)
            if isinstance(wanted, Image.Image):
                assert _same(found, wanted), cut
            else:
                assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
                assert found.tobytes() == wanted.tobytes(), cut


@pytest.mark.parametrize("mode", OTHER_MODES)
def test_ops_give_the_bits_of_torchvision_on_pillows_picture(mode):
    import_torchvision()
    from torchvision.transforms import functional as tv

    picture = Image.open(io.BytesIO(FILES[mode]))
    picture.load()
    for op, wanted in [
        (ops.CenterCrop(20), tv.center_crop(picture, [20, 20])),
        (ops.CenterCrop(60), tv.center_crop(picture, [60, 60])),
        (ops.Resize(18), tv.resize(picture, [18])),
        (ops.Resize((9, 40), "nearest"), tv.resize(picture, [9, 40], tv.InterpolationMode.NEAREST)),
        (ops.Resize(18, "bicubic"), tv.resize(picture, [18], tv.InterpolationMode.BICUBIC)),
        (ops.RandomHorizontalFlip(1.0), tv.hflip(picture)),
        (ops.RandomVerticalFlip(1.0), tv.vflip(picture)),
        (ops.Pad((1, 2, 3, 4), fill=7), tv.pad(picture, [1, 2, 3, 4], 7)),
    ]:
        found = Pipeline([ops.Decode(mode=mode), op]).run(FILES[mode], KEY)
        assert _same(found, wanted), op
    found = Pipeline([ops.Decode(mode=mode), ops.PILToTensor()]).run(FILES[mode], KEY)
    assert torch.equal(torch.from_numpy(found), tv.pil_to_tensor(picture))
    if mode in ops.ToTensor.modes:
        found = Pipeline([ops.Decode(mode=mode), ops.ToTensor()]).run(FILES[mode], KEY)
        assert torch.equal(torch.from_numpy(found), tv.to_tensor(picture))


@pytest.mark.parametrize("mode", OTHER_MODES)
def test_every_op_takes_a_mode_or_is_refused_when_the_pipeline_is_built(mode):
    taken = []
    for op in EXAMPLES:
        try:
            pipeline = Pipeline([ops.Decode(mode=mode), op])
        except ConfigError:
            continue
        if op.kind is not Kind.IMAGE:
            continue
        taken.append(op.name())
        try:
            value = pipeline.run(FILES[mode], KEY)
        except OpError as error:
            assert "smaller" in str(error) or "small" in str(error), op  # noqa: PT017 - a crop of a small picture
            continue
        expected = pipeline.specs[-1]
        found = value.mode if isinstance(value, Image.Image) else ""
        assert found == (expected.mode if expected.kind is Kind.IMAGE else ""), op
    assert "Resize" in taken
    assert not {"ColorJitter", "GaussianBlur", "RandAugment", "Grayscale", "RandomRotation"} & set(taken)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([ops.Decode(mode="P"), ops.ColorJitter(0.5)], "ColorJitter takes pictures in mode RGB, L, but .* in mode P"),
        ([ops.Decode(mode="I;16"), ops.ToTensor()], "ToTensor takes pictures in mode RGB, L, P, .* in mode I;16"),
        ([ops.Decode(mode="I;16"), ops.PILToTensor(), ops.ToFloat()], "ToFloat takes uint8 or float32"),
        ([ops.Decode(mode="P"), ops.Pad(3, padding_mode="edge")], "in mode P a border can only be constant"),
        ([ops.Decode(mode="P"), ops.RandomApply([ops.GaussianBlur(3)])], "GaussianBlur takes pictures in mode"),
    ],
)
def test_what_a_mode_cannot_do_is_refused_when_built(steps, message):
    with pytest.raises(ConfigError, match=message):
        Pipeline(steps)


@pytest.mark.parametrize("mode", MODES)
def test_two_machines_can_compare_their_bits_in_every_mode(mode):
    assert len(digests(Pipeline([ops.Decode(mode=mode), ops.Resize(20), ops.PILToTensor()]))) == 3


def test_an_unknown_mode_is_refused():
    for mode in ("HSV", "1", "p", ""):
        with pytest.raises(ConfigError, match=r"Decode\.mode: expected one of RGB, L, P, RGBA"):
            ops.Decode(mode=mode)


def test_the_numbers_of_modes_on_the_wire_stay():
    assert OTHER_MODES == ("P", "RGBA", "LA", "CMYK", "I;16", "I", "F")
    header, data = layout.split(ops.Decode(mode="P").apply(FILES["P"]))
    assert header.hex() == "01000301" + "25000000" + "35000000" + "01000000"
    assert len(data) == 37 * 53 + 1027


def test_a_payload_of_another_mode_or_a_wrong_palette_is_refused():
    pipeline = Pipeline([ops.Decode(mode="P"), ops.PILToTensor()])
    (cut,) = [cut for cut in legal_cuts(pipeline) if (cut.k, cut.codec) == (1, "raw")]
    payload = make_payload(pipeline, FILES["P"], KEY, cut)
    gray = bytes([*payload[:3], 0]) + payload[4:]
    for broken in (gray, payload[:-1], payload[:3] + b"\x09" + payload[4:], payload[:-1027] + b"\x07" + payload[-1026:],
                   payload[:-1026] + b"\xff\xff" + payload[-1024:]):  # fmt: skip
        with pytest.raises(PayloadError):
            finish_payload(pipeline, broken, KEY, cut)
