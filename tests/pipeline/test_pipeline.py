import json
import pickle

import numpy as np
import pytest
from PIL import Image

from sophon.errors import ConfigError, OpError
from sophon.pipeline import OPS, Call, Key, Op, Pipeline, op_from_spec, ops, register
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Kind, spec_of
from tests.support.pictures import encode, scene

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RECIPE = Pipeline(
    [ops.Decode(), ops.RandomResizedCrop(64), ops.RandomHorizontalFlip(), ops.ToTensor(), ops.Normalize(MEAN, STD)]
)
DATA = encode(scene(160, 120), "jpeg 4:2:0")

# One of each op, with settings other than the defaults.
EXAMPLES = [
    ops.Decode("L", 1000),
    ops.Resize((3, 4), "lanczos"),
    ops.Resize(5, max_size=9),
    ops.CenterCrop((3, 4)),
    ops.RandomCrop(8, (1, 2), True, (1, 2, 3), "edge"),
    ops.RandomResizedCrop(9, (0.2, 0.4), (0.5, 2), "bicubic"),
    ops.RandomHorizontalFlip(0.1),
    ops.RandomVerticalFlip(0.2),
    ops.Pad((1, 2, 3, 4), 5, "symmetric"),
    ops.RandomRotation((-5, 10), "bilinear", True, (1, 2), 3),
    ops.RandomAffine(10, (0.1, 0.2), (0.5, 2), (-1, 1, -2, 2), "bicubic", 4, (5, 6)),
    ops.ColorJitter(0.1, (0.2, 0.3), 0.4, 0.5),
    ops.Grayscale(3),
    ops.RandomGrayscale(0.4),
    ops.GaussianBlur((3, 5), 1.5),
    ops.RandomInvert(0.1),
    ops.RandomPosterize(0.2, 3),
    ops.RandomSolarize(0.3, 99),
    ops.RandomAdjustSharpness(0.4, 2.5),
    ops.RandomAutocontrast(0.6),
    ops.RandomEqualize(0.7),
    ops.RandAugment(1, 2, 3, "bilinear", 4),
    ops.TrivialAugmentWide(5, "bicubic", (6, 7, 8)),
    ops.RandomApply((ops.Resize((5, 5)), ops.RandomInvert(0.3)), 0.2),
    ops.RandomChoice((ops.Resize((5, 5)), ops.CenterCrop(5)), (0.2, 0.8)),
    ops.RandomOrder((ops.Resize((5, 5)), ops.RandomInvert(0.3))),
    ops.AutoAugment("svhn", "bilinear", 4, "v2"),
    ops.RGB(),
    ops.RandomChannelPermutation(),
    ops.RandomPhotometricDistort((0.5, 1.5), (0.6, 1.6), (0.7, 1.7), (-0.2, 0.3), 0.4),
    ops.RandomIoUCrop(0.2, 0.9, 0.4, 3.0, (0.25, 0.5, 1.0), 30),
    ops.RandomZoomOut((1, 2, 3), (1.5, 2.5), 0.7),
    ops.ScaleJitter((30, 40), (0.5, 1.5), "bicubic"),
    ops.RandomShortestSize((30, 40), 60, "box"),
    ops.RandomResize(20, 40, "nearest"),
    ops.RandomResizedCropAndInterpolation(9, (0.2, 0.4), (0.5, 2), ("bicubic", "box")),
    ops.ResizeKeepRatio(9, 0.5, ("bicubic", "box"), 0.1, (0.5, 2), True, 0.2, (0.6, 3)),
    ops.CenterCropOrPad((3, 4), (1, 2, 3), "edge"),
    ops.RandomCropOrPad((3, 4), 5, "reflect"),
    ops.PILToTensor(),
    ops.OnTensor(ops.RandomResizedCrop(5), "float32", "torchvision's RandomResizedCrop", "0123"),
    ops.ToTensor(),
    ops.ToFloat("multiply"),
    ops.Normalize((0.1,), (0.2,)),
    ops.RandomErasing(0.1, (0.2, 0.3), (0.4, 0.5), (0.6,)),
    ops.DecodeAudio(8000, 2, 1000),
    ops.RandomTimeCrop(5, True),
    ops.CenterTimeCrop(6, True),
    ops.TimePad(7),
    ops.Mono(),
    ops.Gain(0.5, True),
    ops.RandomGain(-1, 2),
    ops.Resample(8000),
    ops.MelSpectrogram(8000, 256, 64, 20, 30, 3000, 1, True),
    ops.MFCC(8000, 256, 64, 20, 30, 3000, 1, True, 10),
    ops.TimeMask(3, 0.5, 0.2),
    ops.FrequencyMask(4, 0.5, 0.2),
    ops.DecodeVolume("mask", "where", 2, 1000),
    ops.ResampleVolume((1.5, 2, 3)),
    ops.NormalizeVolume(-5, 5, 1, 2),
    ops.RandomBalancedCrop((3, 4, 5), 0.2, -1),
    ops.RandomFlipVolume(0.1),
    ops.CastVolume("int16", "int32"),
    ops.RandomBrightnessVolume(0.2, 0.3),
    ops.RandomNoiseVolume(0.1, 0.2, 0.3),
    ops.Views([[ops.RandomResizedCrop(8), ops.ToTensor()], ops.CenterCrop(5), ()], "tuple"),
]


def test_the_examples_cover_every_op():
    assert {op.name() for op in EXAMPLES} == set(OPS)


@pytest.mark.parametrize("op", EXAMPLES, ids=lambda op: op.name())
def test_an_op_survives_json(op):
    assert op_from_spec(json.loads(json.dumps(op.to_spec()))) == op


@pytest.mark.parametrize("op", EXAMPLES, ids=lambda op: op.name())
def test_an_op_is_frozen_hashable_and_picklable(op):
    assert pickle.loads(pickle.dumps(op)) == op
    assert hash(op) == hash(pickle.loads(pickle.dumps(op)))
    for field in op.to_spec():
        with pytest.raises(AttributeError):
            setattr(op, field, 1)


def test_a_pipeline_survives_json():
    copy = Pipeline.from_json(RECIPE.to_json())
    assert copy == RECIPE
    assert copy.fingerprint == RECIPE.fingerprint


_UNKNOWN_SIZE = {
    "rotation": ops.RandomRotation((10.0, 80.0), expand=True),
    "rotation about a corner": ops.RandomRotation((10.0, 80.0), expand=True, center=(0.0, 0.0)),
    "right angle": ops.RandomRotation((90.0, 90.0), expand=True),
    "scale": ops.ScaleJitter((90, 70)),
    "shortest": ops.RandomShortestSize((20, 30, 40)),
    "resize": ops.RandomResize(20, 40),
    "zoom": ops.RandomZoomOut(7, (1.0, 2.0)),
    "apply": ops.RandomApply((ops.RandomResize(20, 40),), 0.5),
    "choice": ops.RandomChoice((ops.RandomResize(20, 40), ops.RandomRotation((10.0, 80.0), expand=True))),
    "order": ops.RandomOrder((ops.RandomResize(20, 40), ops.RandomRotation((10.0, 80.0), expand=True))),
}


@pytest.mark.parametrize("op", _UNKNOWN_SIZE.values(), ids=_UNKNOWN_SIZE)
def test_what_an_op_makes_is_known_with_its_parameters_also_inside_other_ops(op):
    picture = scene(60, 40)
    for number in range(10):
        params = op.draw(Rng(Key(1, 0, number), 0), spec_of(picture))
        assert op.made(spec_of(picture), params) == spec_of(op.apply(picture, params))
    data = encode(picture, "jpeg 4:2:0")
    for container in (ops.RandomApply((op, ops.RandomCrop(9, pad_if_needed=True)), 1.0), ops.RandomOrder((op, op))):
        for number in range(10):
            Pipeline([ops.Decode(), container]).run(data, Key(1, 0, number))


def test_a_crop_that_is_known_not_to_fit_is_refused_when_the_pipeline_is_built():
    with pytest.raises(ConfigError, match=r"op 2: RandomCrop: a crop of 40×30 does not fit .* 32×32.*Resize"):
        Pipeline([ops.Decode(), ops.CenterCrop(32), ops.RandomCrop((30, 40))])
    Pipeline([ops.Decode(), ops.CenterCrop(32), ops.RandomCrop((30, 40), padding=4)])
    Pipeline([ops.Decode(), ops.CenterCrop(32), ops.RandomCrop((30, 40), pad_if_needed=True)])
    unknown = Pipeline([ops.Decode(), ops.RandomHorizontalFlip(), ops.RandomCrop(5000)])
    with pytest.raises(OpError, match="does not fit"):
        unknown.run(DATA, Key(0, 0, 0))


def test_fingerprints_are_fixed_for_ever():
    # Profiles and plans on people's disks are found by these; a change needs a new op version, not a new number here.
    assert RECIPE.fingerprint == "331d0caf79a5740d8dde9605ff7b956a"


def test_equal_ops_written_differently_have_equal_fingerprints():
    one = Pipeline([ops.Decode(), ops.Resize([64, 64]), ops.Pad(1), ops.ColorJitter(0.5)])
    two = Pipeline([ops.Decode(), ops.Resize((64, 64)), ops.Pad((1, 1)), ops.ColorJitter((0.5, 1.5), (1, 1), 0, 0.0)])
    assert one.fingerprint == two.fingerprint


def test_any_difference_changes_the_fingerprint():
    seen = {RECIPE.fingerprint, RECIPE.prefix(4).fingerprint}
    for op in (ops.RandomResizedCrop(65), ops.RandomResizedCrop(64, (0.1, 1.0)), ops.CenterCrop(64)):
        seen.add(Pipeline([ops.Decode(), op, *RECIPE.ops[2:]]).fingerprint)
    assert len(seen) == 5


def test_a_pipeline_cannot_be_changed():
    with pytest.raises(AttributeError, match="cannot be changed"):
        RECIPE.ops = ()


def test_output_is_declared_before_it_is_made():
    assert [str(spec) for spec in RECIPE.specs] == [
        "encoded[?] uint8",
        "image[?×?×3] uint8",
        "image[64×64×3] uint8",
        "image[64×64×3] uint8",
        "tensor[3×64×64] float32",
        "tensor[3×64×64] float32",
    ]


def test_the_same_key_gives_the_same_bits_and_another_key_others():
    first = RECIPE.run(DATA, Key(0, 0, 0)).tobytes()
    assert first == RECIPE.run(DATA, Key(0, 0, 0)).tobytes()
    assert (
        len({RECIPE.run(DATA, key).tobytes() for key in (Key(0, 0, 0), Key(1, 0, 0), Key(0, 1, 0), Key(0, 0, 1))}) == 4
    )


def test_one_pass_gives_the_same_bits_as_two():
    for ops_ in (RECIPE.ops, (*RECIPE.ops[:3], ops.PILToTensor(), ops.ToFloat(), ops.Normalize(MEAN, STD))):
        pipeline = Pipeline(ops_)
        value = DATA
        for k in range(len(pipeline)):
            value = pipeline.run(value, Key(3, 1, 4), k, k + 1)
        assert value.tobytes() == pipeline.run(DATA, Key(3, 1, 4)).tobytes()


def test_a_result_can_be_written_into_its_place_in_a_batch():
    batch = np.full((2, 3, 64, 64), np.nan, np.float32)
    result = RECIPE.run(DATA, Key(3, 1, 4), out=batch[1])
    assert result.base is batch
    assert batch[1].tobytes() == RECIPE.run(DATA, Key(3, 1, 4)).tobytes()
    assert np.isnan(batch[0]).all()
    with pytest.raises(ConfigError, match="expected an output array of shape"):
        RECIPE.run(DATA, Key(3, 1, 4), out=batch[1, :, 1:])


def test_normalize_in_one_pass_never_writes_into_a_tensor_that_is_not_its_own():
    pipeline = Pipeline([ops.Decode(), ops.ToTensor(), lambda t: t, ops.ToFloat(), ops.Normalize(MEAN, STD)])
    tensor = np.full((3, 4, 4), 0.5, np.float32)
    pipeline.run(tensor, Key(0, 0, 0), 3)
    assert (tensor == 0.5).all()


@pytest.mark.parametrize(
    "op", [op for op in EXAMPLES if (op.kind is Kind.IMAGE or op.name() == "Views") and op.name() != "OnTensor"]
)
def test_an_op_never_changes_its_input(op):
    picture = scene(20, 16)
    before = picture.tobytes()
    sight = spec_of(picture).with_objects(np.array([[2.0, 3.0, 15.0, 14.0]]))
    Pipeline([ops.Decode(), op]).run(picture, Key(0, 0, 0, sight), 1)
    assert picture.tobytes() == before


def test_a_callable_in_a_pipeline_stays_on_the_trainer():
    pipeline = Pipeline([ops.Decode(), ops.CenterCrop(8), lambda picture: picture.rotate(90), ops.ToTensor()])
    assert isinstance(pipeline.ops[2], Call)
    assert pipeline.max_cut == 2
    assert pipeline.run(DATA, Key(0, 0, 0)).shape == (3, 8, 8)
    assert "trainer only: after a trainer-only step" in pipeline.describe()
    with pytest.raises(ConfigError, match="unknown op 'Call'"):
        Pipeline.from_json(pipeline.to_json())


# --- what cannot work is refused when the pipeline is built -----------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([], "expected 1 to 64 ops, got 0"),
        ([ops.Resize(3)], "op 0: Resize takes an image, but the op before it gives encoded"),
        ([ops.Decode(), ops.Normalize(MEAN, STD)], "op 1: Normalize takes a tensor, but the op before it gives image"),
        ([ops.Decode(), ops.PILToTensor(), ops.Normalize(MEAN, STD)], "put ToTensor or ToFloat there"),
        ([ops.Decode("L"), ops.ToTensor(), ops.Normalize(MEAN, STD)], "3 means for 1 channel"),
        ([ops.Decode(), ops.ToTensor(), ops.RandomErasing(value=(1, 2))], "2 values for 3 channel"),
        ([ops.Decode(), ops.PILToTensor(), ops.RandomErasing(value="random")], "takes float32"),
        ([ops.Decode(), ops.ToTensor(), ops.ToTensor()], "ToTensor takes an image, but the op before it gives tensor"),
        ([ops.Decode(), ops.RandomApply((ops.ToTensor(),))], "must be the same kind of value"),
        ([ops.Decode(), 3], "expected an op or a callable, got 3"),
        ([ops.Decode], "did you forget the parentheses"),
        ([ops.Decode(), None], "got None; leave it out"),
        ([ops.Decode(), [ops.ToTensor()]], "unpack it with *"),
        ([ops.Decode(), {"train": ops.ToTensor()}], "give one of its values"),
    ],
)
def test_ops_that_do_not_fit_together_are_refused(steps, message):
    with pytest.raises(ConfigError) as caught:
        Pipeline(steps)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ops.Resize(0), "Resize.size: expected an integer in 1 … 65535, got 0"),
        (lambda: ops.Resize("64"), "Resize.size: expected a sequence of 1 or 2 elements, got '64'"),
        (lambda: ops.Resize(True), "Resize.size"),
        (lambda: ops.Resize((65535, 65535)), "Resize.size: expected at most 178,956,970 pixels"),
        (lambda: ops.Resize(5, max_size=4), "Resize.max_size: expected more than the shorter edge"),
        (lambda: ops.Resize(5, "bilinar"), "Resize.interpolation: expected one of nearest, bilinear"),
        (lambda: ops.RandomResizedCrop(5, (0.5, 0.1)), "RandomResizedCrop.scale: expected (minimum, maximum)"),
        (lambda: ops.RandomResizedCrop(5, (0.0, 0.0)), "a largest share above 0"),
        (lambda: ops.RandomResizedCrop(5, (0.1, float("nan"))), "expected a finite number"),
        (lambda: ops.RandomCrop(5, -1), "RandomCrop.padding: expected an integer in 0 … 65535, got -1"),
        (lambda: ops.RandomHorizontalFlip(1.5), "RandomHorizontalFlip.p: expected a finite number in 0 … 1, got 1.5"),
        (lambda: ops.ColorJitter(hue=0.6), "ColorJitter.hue"),
        (lambda: ops.ColorJitter(brightness=-1), "ColorJitter.brightness"),
        (lambda: ops.Grayscale(2), "Grayscale.num_output_channels: expected 1 or 3, got 2"),
        (lambda: ops.GaussianBlur(4), "GaussianBlur.kernel_size: expected odd numbers"),
        (lambda: ops.GaussianBlur(3, 0), "GaussianBlur.sigma"),
        (lambda: ops.Normalize((1, 2), (1,)), "as many means as standard deviations, got 2 and 1"),
        (lambda: ops.Normalize((1,), (0,)), "Normalize.std: expected numbers that are not 0"),
        (lambda: ops.Normalize((1,), (1e-50,)), "Normalize.std: expected numbers that are not 0 in float32"),
        (lambda: ops.Pad(1, (1, 2)), "Pad.fill: expected a sequence of 1 or 3 elements"),
        (lambda: ops.RandAugment(magnitude=31), "RandAugment.magnitude: expected an integer in 0 … 30, got 31"),
        (lambda: ops.RandomApply(()), "RandomApply.ops"),
        (lambda: ops.RandomApply((3,)), "RandomApply.ops: expected an op, got 3"),
        (lambda: ops.RandomChoice((ops.Pad(1),), (0.0,)), "weights that add up to more than 0"),
        (lambda: ops.RandomErasing(value="noise"), "RandomErasing.value: expected one of random"),
        (lambda: ops.Decode("HSV"), "Decode.mode: expected one of RGB, L, P, RGBA, LA, CMYK, I;16, I, F, got 'HSV'"),
    ],
)
def test_wrong_parameters_are_refused(make, message):
    with pytest.raises(ConfigError) as caught:
        make()
    assert message in str(caught.value)


# --- specs from the network -------------------------------------------------------------------------------------------


def _nested(depth):
    return [_nested(depth - 1)] if depth else 1


def _spec(**changes):
    return {"format": 1, "ops": [ops.Decode().to_spec(), {"op": "Resize", "version": 1, "size": 8} | changes]}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (_spec(op="Rezise"), "op 1: unknown op 'Rezise'; did you mean Resize?"),
        (_spec(op="eval"), "sophon.OPS lists the known ops"),
        (_spec(op=7), 'expected an op as {"op": NAME'),
        (_spec(version=2), "Resize version 2 is not known here, only version 1"),
        (_spec(version=None), "Resize version None is not known here"),
        (_spec(colour=1), "Resize has no parameter 'colour'; it takes interpolation, max_size, size"),
        (_spec(size="big"), "Resize.size"),
        (_spec(size={"op": "Resize"}), "Resize version None"),
        (_spec(size=[[1, 2], 3]), "Resize.size"),
        (_spec(size=_nested(50)), "nested at most 8 deep"),
        ({"format": 1, "ops": [{"op": "Resize", "version": 1}]}, "missing 1 required positional argument: 'size'"),
        ({"format": 2, "ops": []}, "expected pipeline format 1, got 2"),
        ({"format": 1, "ops": {}}, "expected a pipeline as"),
        ({"format": 1, "ops": [ops.Decode().to_spec()] * 65}, "expected at most 64 ops, got 65"),
        ([], "expected a pipeline as"),
        (None, "expected a pipeline as"),
    ],
)
def test_a_spec_that_cannot_be_built_is_refused(spec, message):
    with pytest.raises(ConfigError) as caught:
        Pipeline.from_json(json.dumps(spec))
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"format": NaN}', "x" * 70_000, '"\\ud800"', "9" * 5_000])
def test_text_that_is_no_pipeline_is_refused(text):
    with pytest.raises(ConfigError):
        Pipeline.from_json(text)


def test_ops_nested_without_end_are_refused():
    spec = ops.RandomInvert().to_spec()
    for _ in range(20):
        spec = {"op": "RandomApply", "version": 1, "ops": [spec], "p": 0.5}
    with pytest.raises(ConfigError, match="nested at most 8 deep"):
        op_from_spec(spec)


# --- samples that cannot be processed ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an image: 0 bytes that start with nothing."),
        (b"hello world, no picture", "not an image: 23 bytes that start with 68 65 6c 6c 6f"),
        (DATA[: len(DATA) // 2], "JPEG image is damaged: image file is truncated"),
        (DATA[:300], "damaged"),
        (encode(scene(90, 90), "png")[:4000], "PNG image is damaged"),
        (b"\xff\xd8\xff" + b"\x00" * 50, "not an image"),
    ],
)
def test_a_damaged_file_is_named_with_its_op_sample_and_remedy(data, message):
    with pytest.raises(OpError) as caught:
        RECIPE.run(data, Key(0, 0, 1234))
    error = caught.value
    assert (error.op, error.position, error.sample) == ("Decode", 0, 1234)
    assert str(error).startswith("sample 1234, op 0 (Decode): ")
    assert message in str(error)
    assert "replace it, or leave it out" in str(error)


@pytest.mark.parametrize("form", ["jpeg 4:2:0", "png"])
def test_a_picture_beyond_the_pixel_limit_is_refused_before_it_is_decoded(form):
    pipeline = Pipeline([ops.Decode(max_pixels=160 * 120 - 1)])
    with pytest.raises(OpError, match=r"declares 160×120 pixels, more than the limit of 19,199\. Raise Decode"):
        pipeline.run(encode(scene(160, 120), form), Key(0, 0, 0))
    assert Pipeline([ops.Decode(max_pixels=160 * 120)]).run(DATA, Key(0, 0, 0)).size == (160, 120)


def test_the_default_pixel_limit_stops_a_decompression_bomb():
    bomb = bytearray(encode(scene(16, 16), "jpeg 4:4:4"))
    at = bomb.index(b"\xff\xc0")
    bomb[at + 5 : at + 9] = (65_000).to_bytes(2, "big") * 2
    with pytest.raises(OpError, match="declares 65000×65000 pixels, more than the limit of 178,956,970"):
        RECIPE.run(bytes(bomb), Key(0, 0, 0))


def test_a_png_bomb_is_stopped_by_pillows_own_limit_too():
    import struct
    import zlib

    head = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    with pytest.raises(OpError, match="MAX_IMAGE_PIXELS"):
        RECIPE.run(bomb + b"\x00\x00\x00\x00IDAT", Key(0, 0, 0))


def test_a_crop_that_does_not_fit_says_what_to_do():
    with pytest.raises(OpError, match=r"sample 5, op 1 \(RandomCrop\): a crop of 500×500 does not fit.*pad_if_needed"):
        Pipeline([ops.Decode(), ops.RandomCrop(500)]).run(DATA, Key(0, 0, 5))


def test_a_result_too_large_for_memory_is_refused():
    thin = Image.new("RGB", (60_000, 1))
    with pytest.raises(OpError, match="would make a picture of"):
        Pipeline([ops.Decode(), ops.Resize(100)]).run(thin, Key(0, 0, 0), 1)


def test_an_error_in_the_users_own_code_keeps_its_cause_and_gets_its_place():
    def broken(_):
        raise KeyError("oops")

    with pytest.raises(OpError, match=r"sample 3, op 1 \(Call\(.*broken\)\): KeyError: 'oops'") as caught:
        Pipeline([ops.Decode(), broken]).run(DATA, Key(0, 0, 3))
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_op_error_survives_the_way_back_from_a_worker_process():
    error = pickle.loads(pickle.dumps(OpError("bad.", remedy="Do.", op="Decode", position=0, sample=9)))
    assert (str(error), error.sample) == ("sample 9, op 0 (Decode): bad. Do.", 9)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 6)])
def test_a_range_outside_the_pipeline_is_refused(start, stop):
    with pytest.raises(ConfigError, match="expected 0 ≤ start ≤ stop ≤ 5"):
        RECIPE.run(DATA, Key(0, 0, 0), start, stop)


def test_an_op_of_ones_own_can_be_registered_once():
    class Mine(ops.RandomInvert):
        pass

    try:
        assert register(Mine) is Mine
        assert op_from_spec(Mine().to_spec()) == Mine()
        with pytest.raises(ConfigError, match="already registered"):
            register(type("Mine", (Op,), {}))
    finally:
        del OPS["Mine"]


def test_a_pipeline_whose_picture_targets_follow_stays_one_even_if_no_field_crosses_the_link():
    plain = Pipeline([ops.Decode(), ops.RandomCrop(8), ops.ToTensor()])
    joint = plain.along([])
    assert joint.is_joint
    assert not plain.is_joint
    assert joint != plain
    assert joint.fingerprint != plain.fingerprint
    for same in (
        Pipeline.from_json(joint.to_json()),
        Pipeline.from_spec(joint.to_spec()),
        pickle.loads(pickle.dumps(joint)),
    ):
        assert same == joint
        assert same.is_joint
        assert same.fingerprint == joint.fingerprint
    assert joint.prefix(2).is_joint
    assert not plain.prefix(2).is_joint
    assert Pipeline.from_json(plain.to_json()) == plain
