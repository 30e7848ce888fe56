"""Invariant 1: for every sample, epoch, seed and legal cut the finished tensor is bit-equal to the uncut run."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sophon.codec import CODECS, RAW, Cut, codec_named, finish_payload, legal_cuts, make_payload
from sophon.codec.route import Route, legal_routes, pass_on
from sophon.errors import ConfigError, OpError
from sophon.pipeline import Key, Pipeline, ops
from tests.support.pictures import FORMS, encode, photos, scene

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RECIPE = Pipeline(
    [ops.Decode(), ops.RandomResizedCrop(224), ops.RandomHorizontalFlip(), ops.ToTensor(), ops.Normalize(MEAN, STD)]
)

_small = st.integers(1, 40)
_chance = st.sampled_from([0.0, 0.5, 1.0])
_on_images = st.one_of(
    st.builds(
        ops.Resize, st.one_of(_small, st.tuples(_small, _small)), st.sampled_from(["nearest", "bilinear", "bicubic"])
    ),
    st.builds(ops.CenterCrop, st.tuples(_small, _small)),
    st.builds(ops.RandomCrop, _small, st.one_of(st.none(), st.integers(0, 5)), st.just(True)),
    st.builds(ops.RandomResizedCrop, st.tuples(_small, _small)),
    st.builds(ops.RandomHorizontalFlip, _chance),
    st.builds(ops.RandomVerticalFlip, _chance),
    st.builds(ops.Pad, st.integers(0, 4), st.integers(0, 255)),
    st.builds(ops.ColorJitter, st.just(0.4), st.just(0.4), st.just(0.4), st.just(0.2)),
    st.builds(ops.Grayscale, st.just(3)),
    st.builds(ops.RandomGrayscale, _chance),
    st.builds(ops.GaussianBlur, st.just(1)),
    st.builds(ops.RandomRotation, st.just(30), st.just("bilinear"), st.booleans()),
    st.builds(ops.RandomAffine, st.just(20), st.just((0.2, 0.2)), st.just((0.8, 1.2))),
    st.builds(ops.RandAugment),
    st.builds(ops.TrivialAugmentWide),
    st.builds(ops.RandomSolarize, _chance),
    st.builds(ops.RandomEqualize, _chance),
    st.builds(lambda p: ops.RandomApply((ops.ColorJitter(0.4), ops.RandomCrop(9, pad_if_needed=True)), p), _chance),
    st.builds(lambda: ops.RandomChoice((ops.Resize((7, 9)), ops.RandomInvert(0.5)))),
    st.builds(lambda: ops.RandomOrder((ops.Pad(2), ops.ColorJitter(0.4), ops.RandomCrop(9, pad_if_needed=True)))),
    st.builds(ops.AutoAugment, st.sampled_from(["imagenet", "cifar10", "svhn"])),
    st.builds(ops.RandomPhotometricDistort),
    st.builds(ops.RandomChannelPermutation),
    st.builds(ops.RandomZoomOut, st.just(9), st.just((1.0, 1.5)), _chance),
    st.builds(ops.RGB),
    st.builds(ops.RandomResize, st.just(5), st.just(20)),
    st.builds(ops.RandomShortestSize, st.just((90, 120))),
    st.builds(ops.RandomResizedCropAndInterpolation, st.tuples(_small, _small)),
    st.builds(ops.ResizeKeepRatio, st.just(120), st.just(0.0), st.just("bicubic"), _chance, random_aspect_prob=_chance),
    st.builds(ops.CenterCropOrPad, st.tuples(_small, _small), st.integers(0, 255)),
    st.builds(ops.RandomCropOrPad, st.tuples(_small, _small), st.integers(0, 255)),
)
_endings = st.sampled_from(
    [
        (),
        (ops.ToTensor(),),
        (ops.ToTensor(), ops.Normalize(MEAN, STD)),
        (ops.PILToTensor(), ops.ToFloat("multiply"), ops.Normalize(MEAN, STD)),
        (ops.ToTensor(), ops.Normalize(MEAN, STD), ops.RandomErasing(1.0, value="random")),
        (ops.Grayscale(1), ops.ToTensor(), ops.Normalize((0.5,), (0.5,)), ops.RandomErasing(0.5)),
        (ops.Grayscale(1),),
    ]
)
_pipelines = st.builds(
    lambda middle, end: Pipeline([ops.Decode(), *middle, *end]), st.lists(_on_images, max_size=4), _endings
)
_files = st.builds(
    lambda size, seed, form: encode(scene(*size, seed=seed), form),
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.integers(0, 20),
    st.sampled_from(list(FORMS)),
)
_keys = st.builds(Key, st.integers(0, 2**64 - 1), st.integers(0, 1000), st.integers(0, 2**40))


def bits(value: object) -> tuple[object, ...]:
    """Return all that makes a value what it is."""
    if isinstance(value, Image.Image):
        return value.mode, value.size, value.tobytes()
    assert isinstance(value, np.ndarray)
    return value.dtype, value.shape, value.tobytes()


def assert_same_bits_at_every_cut(pipeline: Pipeline, data: bytes, key: Key) -> None:
    whole = bits(pipeline.run(data, key))
    cuts = legal_cuts(pipeline)
    assert cuts[0] == RAW
    assert {cut.k for cut in cuts} == set(range(pipeline.max_cut + 1))
    for cut in cuts:
        try:
            payload = make_payload(pipeline, data, key, cut)
        except OpError:
            assert cut.codec == "window"  # where the same bits cannot be promised, the raw file is sent instead
            continue
        assert bits(finish_payload(pipeline, payload, key, cut)) == whole, cut


@given(_pipelines, _files, _keys)
@settings(max_examples=80, deadline=None)
def test_same_bits_for_any_pipeline_picture_seed_epoch_and_cut(pipeline, data, key):
    assert_same_bits_at_every_cut(pipeline, data, key)


@given(_pipelines, _files, _keys)
@settings(max_examples=60, deadline=None)
def test_a_node_sends_the_value_of_the_uncut_run_wherever_it_stops(pipeline, data, key):
    # Where it crops it may decode a part only; where it stops before that, the whole picture is what is asked for.
    for k in range(pipeline.max_cut + 1):
        value = pipeline.run(data, key, 0, k)
        assert make_payload(pipeline, data, key, Cut(k)) == codec_named("raw").encode(value)
        stopped = finish_payload(pipeline, data, key, RAW, k)
        assert stopped == data if k == 0 else bits(stopped) == bits(value)


def assert_same_bits_by(route: Route, pipeline: Pipeline, data: bytes, key: Key, whole: object) -> None:
    first, cut = route.cuts
    try:
        payload = pass_on(pipeline, make_payload(pipeline, data, key, first), key, route)
    except OpError:
        assert "window" in (first.codec, cut.codec)  # as above
        return
    assert bits(finish_payload(pipeline, payload, key, cut)) == whole, route


@given(_pipelines, _files, _keys, st.data())
@settings(max_examples=50, deadline=None)
def test_same_bits_through_a_relay_at_any_legal_route(pipeline, data, key, draw):
    route = draw.draw(st.sampled_from(legal_routes(pipeline)))
    assert_same_bits_by(route, pipeline, data, key, bits(pipeline.run(data, key)))


@pytest.mark.slow
@given(_pipelines, _files, _keys)
@settings(max_examples=500, deadline=None)
def test_same_bits_through_a_relay_at_every_legal_route(pipeline, data, key):
    whole = bits(pipeline.run(data, key))
    for route in legal_routes(pipeline):
        assert_same_bits_by(route, pipeline, data, key, whole)


@pytest.mark.slow
def test_same_bits_on_photos_over_epochs_and_seeds():
    for sample, data in enumerate(photos()):
        for seed, epoch in ((0, 0), (0, 1), (7, 0)):
            assert_same_bits_at_every_cut(RECIPE, data, Key(seed, epoch, sample))
            key = Key(seed, epoch, sample)
            for route in legal_routes(RECIPE):
                assert_same_bits_by(route, RECIPE, data, key, bits(RECIPE.run(data, key)))


def test_same_bits_when_the_other_side_knows_the_pipeline_from_json_only():
    far = Pipeline.from_json(RECIPE.to_json())
    data = photos()[0]
    for cut in legal_cuts(RECIPE):
        payload = make_payload(far.prefix(cut.k) if cut.k else far, data, Key(1, 2, 3), cut)
        assert bits(finish_payload(RECIPE, payload, Key(1, 2, 3), cut)) == bits(RECIPE.run(data, Key(1, 2, 3)))


def test_a_trainer_only_step_bounds_the_cuts():
    pipeline = Pipeline([ops.Decode(), ops.CenterCrop(8), lambda picture: picture, ops.ToTensor()])
    assert {cut.k for cut in legal_cuts(pipeline)} == {0, 1, 2}
    assert_same_bits_at_every_cut(pipeline, encode(scene(30, 20), "png"), Key(0, 0, 0))


def test_the_legal_cuts_of_the_imagenet_recipe():
    codecs = [name for name in CODECS if not name.startswith("jxl")]  # test_jxl.py
    assert [str(cut) for cut in legal_cuts(RECIPE, codecs)] == [
        "0:raw", "0:zstd", "0:window",
        "1:raw", "1:zstd", "1:webp",
        "2:raw", "2:zstd", "2:webp",
        "3:raw", "3:zstd", "3:webp",
        "4:raw", "4:zstd",
        "5:raw", "5:zstd",
    ]  # fmt: skip


def test_lossy_codecs_are_never_legal_unless_allowed():
    assert not any(cut.codec.startswith("jpeg") for cut in legal_cuts(RECIPE))
    assert Cut(2, "jpeg:95") in legal_cuts(RECIPE, allow_lossy=True)
    assert Cut(2, "jpeg:80") in legal_cuts(RECIPE, [*CODECS, "jpeg:80"], allow_lossy=True)


def test_a_cut_is_written_and_read():
    assert str(Cut(2, "webp")) == "2:webp"
    assert Cut.parse("2:jpeg:90") == Cut(2, "jpeg:90")
    assert Cut.parse("0:jpeg") == Cut(0, "jpeg:95")
    for text in ("", "2", "x:raw", "-1:raw", "2:", "2:gzip"):
        with pytest.raises(ConfigError):
            Cut.parse(text)


@pytest.mark.parametrize("cut", [Cut(6, "raw"), Cut(-1, "raw"), Cut(0, "webp"), Cut(4, "webp")])
def test_a_cut_that_is_not_legal_is_refused_with_those_that_are(cut):
    with pytest.raises(ConfigError, match=r"cannot be cut at .*; choose from 0:raw"):
        make_payload(RECIPE, b"", Key(0, 0, 0), cut)
