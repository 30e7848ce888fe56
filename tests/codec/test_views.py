"""Views have the same bits at every legal cut, whatever their steps; a damaged payload of them is refused."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sophon.bundle import pack, unpack
from sophon.codec import Cut, codec_named, finish_payload, legal_cuts, make_payload
from sophon.codec.views import decode, encode
from sophon.errors import OpError, PayloadError
from sophon.pipeline import Key, Pipeline, ops
from sophon.pipeline.probe import bits_of
from sophon.pipeline.spec import ViewSet
from sophon.profile.columns import cuts_to_profile, resize_k
from tests.codec.test_cuts import _endings, _files, _keys, _on_images
from tests.support.pictures import encode as encoded
from tests.support.pictures import scene

FILE = encoded(scene(90, 70, seed=3), "jpeg 4:2:0")
TWO = Pipeline(
    [
        ops.Decode(),
        ops.Views(
            [
                [ops.RandomResizedCrop(24), ops.ColorJitter(0.4), ops.ToTensor()],
                [ops.RandomResizedCrop(12), ops.RandomGrayscale(0.5), ops.ToTensor()],
            ]
        ),
    ]
)

_crops = st.one_of(
    st.builds(ops.RandomResizedCrop, st.integers(1, 40)),
    st.builds(lambda n: ops.RandomCrop(n, pad_if_needed=True), st.integers(1, 40)),
    st.builds(ops.CenterCrop, st.integers(1, 40)),
)
_views = st.builds(
    lambda crop, middle, end: (*crop, *middle, *end),
    st.lists(_crops, max_size=1),
    st.lists(_on_images, max_size=2),
    _endings,
)
_pipelines = st.builds(
    lambda before, views, container: Pipeline([ops.Decode(), *before, ops.Views(views, container)]),
    st.lists(st.builds(ops.RandomHorizontalFlip), max_size=1),
    st.lists(_views, min_size=1, max_size=4),
    st.sampled_from(["list", "tuple"]),
)


def _check(pipeline, data, key):
    try:
        expected = bits_of(pipeline.run(data, key))
    except OpError:
        return  # a picture that is too small for what is asked; every cut says so too
    for cut in legal_cuts(pipeline):
        try:
            payload = make_payload(pipeline, data, key, cut)
        except OpError:
            assert cut.codec in ("window", "webp"), cut  # the whole file is sent then
            continue
        made = finish_payload(pipeline, payload, key, cut)
        assert made.container == pipeline.ops[-1].container
        assert bits_of(made) == expected, f"{cut} of {pipeline!r}"


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(pipeline=_pipelines, data=_files, key=_keys)
def test_same_bits_at_every_legal_cut(pipeline, data, key):
    _check(pipeline, data, key)


@pytest.mark.slow
@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(pipeline=_pipelines, data=_files, key=_keys)
def test_same_bits_at_every_legal_cut_of_many(pipeline, data, key):
    _check(pipeline, data, key)


def test_the_cuts_of_views():
    cuts = [str(cut) for cut in legal_cuts(TWO, ("raw", "webp", "window"))]
    assert cuts == ["0:raw", "0:window", "1:raw", "1:webp", "2:raw", "2:webp", "3:raw", "3:webp", "4:raw"]
    wanted = [str(cut) for cut in cuts_to_profile(TWO, ("raw", "webp", "window"))]
    assert wanted == ["0:raw", "0:window", "1:raw", "2:raw", "2:webp", "3:raw", "3:webp", "4:raw"]
    assert resize_k(TWO) == 2


def test_a_payload_is_a_bundle_of_what_the_codec_makes_of_each_view():
    key = Key(0, 0, 0)
    views = TWO.run(FILE, key, 0, 2)
    for name in ("raw", "webp"):
        payload = make_payload(TWO, FILE, key, Cut(2, name))
        assert [bytes(part) for part in unpack(payload, 2)] == [codec_named(name).encode(v) for v in views.values]


def test_a_damaged_payload_is_refused():
    webp, spec = codec_named("webp"), TWO.specs[2]
    views = TWO.run(FILE, Key(0, 0, 0), 0, 2)
    payload = encode(webp, views)
    parts = unpack(payload, 2)
    damaged = [
        b"",
        payload[:-1],
        payload + b"\0",
        bytes(parts[0]),
        pack([parts[0]] * 3),
        pack([parts[1], parts[0]]),  # of other sizes than theirs
        pack([parts[0], parts[1][:-3]]),
        pack([parts[0], b""]),
        encode(webp, ViewSet(views.values[:1])),
    ]
    for data in damaged:
        with pytest.raises(PayloadError):
            decode(webp, data, spec)
    assert bits_of(decode(webp, payload, spec)) == bits_of(views)


def test_a_file_whose_metadata_a_step_of_ones_own_may_look_at_is_sent_whole():
    turned = encoded(scene(40, 30), "jpeg rotated")
    pipeline = Pipeline([ops.Decode(), ops.Views([[ops.CenterCrop(8), lambda picture: picture], ops.CenterCrop(8)])])
    assert pipeline.ops[0].metadata
    for cut in (Cut(0, "window"), Cut(2)):
        with pytest.raises(OpError, match="EXIF orientation"):
            make_payload(pipeline, turned, Key(0, 0, 0), cut)
        assert make_payload(pipeline, FILE, Key(0, 0, 0), cut)
