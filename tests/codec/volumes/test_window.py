"""Volumes have the same bits at every legal cut; windows hold no more than the crop needs, and nothing is trusted."""

import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sophon.bundle import pack, unpack
from sophon.codec import Cut, codec_named, finish_payload, legal_cuts, make_payload
from sophon.errors import Error, PayloadError
from sophon.pipeline import Key, Pipeline, ops
from sophon.pipeline.probe import bits_of
from tests.support.volumes import DECODE, FORMATS, RECIPE, sample

SAMPLES = [(form, seed) for form in sorted(FORMATS) for seed in (0, 1)]
KEYS = st.builds(Key, st.integers(0, 5), st.integers(0, 1000), st.integers(0, 1000))
STEPS = st.lists(
    st.one_of(
        st.builds(ops.ResampleVolume, st.tuples(*[st.floats(0.5, 4.0)] * 3)),
        st.just(ops.NormalizeVolume()),
        st.builds(ops.RandomFlipVolume, st.just(0.5)),
        st.builds(ops.RandomBrightnessVolume, st.just(0.3), st.just(0.5)),
        st.builds(ops.RandomBalancedCrop, st.tuples(*[st.integers(1, 24)] * 3), st.just(0.5)),
    ),
    max_size=5,
)
ENDS = st.sampled_from([(), (ops.CastVolume("int16", "int32"),), (ops.RandomNoiseVolume(p=0.5), ops.CastVolume())])


@cache
def _sample(form, seed):
    return sample(form, seed, 12 + 5 * seed, 30)[0]


def _bits(value):
    return bits_of(value.array), None if value.label is None else bits_of(value.label)


@given(STEPS, ENDS, st.sampled_from(SAMPLES), KEYS, st.booleans())
@settings(deadline=None, max_examples=60)
def test_every_legal_cut_gives_the_same_bits(steps, ends, which, key, is_alone):
    decode = ops.DecodeVolume() if is_alone else DECODE
    data = bytes(unpack(_sample(*which), 3)[0]) if is_alone else _sample(*which)
    pipeline = Pipeline([decode, *steps, *ends])
    whole = pipeline.run(data, key)
    for cut in legal_cuts(pipeline):
        payload = make_payload(pipeline, data, key, cut)
        assert _bits(finish_payload(pipeline, payload, key, cut)) == _bits(whole), cut


@pytest.mark.slow
@given(STEPS, ENDS, st.sampled_from(SAMPLES), KEYS, st.booleans())
@settings(deadline=None, max_examples=1500)
def test_every_legal_cut_of_many_recipes_gives_the_same_bits(steps, ends, which, key, is_alone):
    test_every_legal_cut_gives_the_same_bits.hypothesis.inner_test(steps, ends, which, key, is_alone)


@pytest.mark.parametrize("form", FORMATS)
def test_a_window_is_legal_before_the_crop_and_smaller_than_the_files(form):
    data, _ = sample(form, 3, 64, 64)
    pipeline = Pipeline([DECODE, ops.NormalizeVolume(), ops.RandomBalancedCrop((32, 32, 32)), ops.CastVolume()])
    assert Cut(0, "window") in legal_cuts(pipeline)
    assert len(make_payload(pipeline, data, Key(0, 0, 0), Cut(0, "window"))) < 0.25 * len(data)
    assert Cut(0, "window") not in legal_cuts(Pipeline([DECODE, ops.RandomNoiseVolume(), *pipeline.ops[2:]]))


def test_only_the_part_that_is_needed_is_decoded_on_either_side():
    data, _ = sample("zarr.zip", 3, 64, 64)
    pipeline = Pipeline([ops.DecodeVolume(), ops.RandomBalancedCrop((16, 16, 16))])
    image = unpack(data, 3)[0]
    part = codec_named("window").cut_down(image, pipeline, Key(0, 0, 0))
    assert part.array.shape == (1, 16, 16, 16)
    assert part.whole_sizes == (64, 64, 64)


def _mutations(payload, count):
    rng = random.Random(3)
    for _ in range(count):
        made = bytearray(payload)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(min(len(made), 700) if rng.random() < 0.7 else len(made))
            made[at] = rng.randrange(256)
        yield bytes(made if rng.random() < 0.8 else made[: rng.randrange(len(made))])


@pytest.mark.parametrize("cut", ["0:window", "1:raw", "4:zstd"])
@pytest.mark.parametrize("form", ["nii", "zarr.zip"])
def test_damaged_payloads_end_in_typed_errors(form, cut):
    key = Key(0, 0, 0)
    payload = make_payload(RECIPE, _sample(form, 0), key, Cut.parse(cut))
    for made in _mutations(payload, 300):
        try:
            finish_payload(RECIPE, made, key, Cut.parse(cut))
        except Error:
            continue


def test_patches_that_do_not_belong_together_are_refused():
    key, cut = Key(0, 0, 0), Cut(0, "window")
    one, other = (make_payload(RECIPE, _sample("nii", seed), key, cut) for seed in (0, 1))
    image, label, boxes = unpack(one, 3)
    with pytest.raises(PayloadError, match="window is damaged"):
        finish_payload(RECIPE, pack([image, unpack(other, 3)[1], boxes]), key, cut)
    with pytest.raises(PayloadError, match="window is damaged"):
        finish_payload(RECIPE, pack([image, label, b"{}"]), key, cut)
    with pytest.raises(PayloadError, match="window is damaged"):
        finish_payload(RECIPE, image, key, cut)
    raw = Cut(1, "raw")
    parts = unpack(make_payload(RECIPE, _sample("nii", 0), key, raw), 3)
    with pytest.raises(PayloadError, match="foreground"):
        finish_payload(RECIPE, pack([parts[0], parts[1], np.full(7, np.nan).tobytes()]), key, raw)
