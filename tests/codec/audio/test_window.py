"""Windows of sounds: valid files, the same bits, and errors with a type for whatever is damaged."""

import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sophon.codec import RAW, Cut, finish_payload, legal_cuts, make_payload
from sophon.codec.audio import _flac
from sophon.codec.cut import WINDOW
from sophon.codec.window.refusal import NotWindowable
from sophon.codec.windows import WINDOWS
from sophon.errors import Error, OpError, PayloadError
from sophon.pipeline import Key, Pipeline, ops
from sophon.pipeline.ops.audio import flac
from sophon.pipeline.part import Signal
from tests.support.sounds import FORMS, as_variable, read_by_soundfile, sound_file

PLACE = 16
RECIPE = Pipeline([ops.DecodeAudio(), ops.RandomTimeCrop(2_000), ops.RandomGain()])


def array(value):
    assert not isinstance(value, Signal) or value.array.shape[1:] == value.whole_sizes
    return value.array if isinstance(value, Signal) else value


def assert_same_bits_at_every_cut(pipeline, data, key):
    whole = array(pipeline.run(data, key))
    for cut in legal_cuts(pipeline):
        try:
            payload = make_payload(pipeline, data, key, cut)
        except OpError:
            assert cut.codec in ("window", "flac")  # the raw file is sent instead
            continue
        found = array(finish_payload(pipeline, payload, key, cut))
        assert (found.dtype, found.shape, found.tobytes()) == (whole.dtype, whole.shape, whole.tobytes()), cut


_ops = st.lists(
    st.one_of(
        st.builds(ops.RandomTimeCrop, st.integers(1, 900), st.just(True)),
        st.builds(ops.CenterTimeCrop, st.integers(1, 900), st.just(True)),
        st.builds(ops.TimePad, st.integers(1, 2_000)),
        st.builds(ops.Resample, st.sampled_from([4_000, 12_000, 8_000])),
        st.builds(ops.Gain, st.sampled_from([0.5, 1.7]), st.booleans()),
        st.just(ops.RandomGain()),
        st.just(ops.Mono()),
    ),
    max_size=4,
)
_endings = st.sampled_from(
    [
        (),
        (
            ops.Resample(8_000),
            ops.TimePad(64),
            ops.MelSpectrogram(8_000, 64, 32, 8),
            ops.TimeMask(9),
            ops.FrequencyMask(3),
        ),
        (ops.Resample(8_000), ops.TimePad(64), ops.MFCC(8_000, 64, 32, 8, n_mfcc=4)),
    ]
)
_files = st.builds(
    sound_file, st.sampled_from(list(FORMS)), st.integers(1, 9_000), st.integers(1, 3), st.integers(0, 9)
)


@given(_ops, _endings, _files, st.builds(Key, st.integers(0, 2**64 - 1), st.integers(0, 99), st.integers(0, 2**40)))
@settings(max_examples=50, deadline=None)
def test_same_bits_for_any_pipeline_sound_seed_epoch_and_cut(middle, end, data, key):
    assert_same_bits_at_every_cut(Pipeline([ops.DecodeAudio(), *middle, *end]), data, key)


@pytest.mark.parametrize("form", FORMS)
def test_a_window_is_a_file_that_libsndfile_reads_to_the_samples_of_the_whole(form):
    data = sound_file(form, 30_011, 2, 4)
    whole = read_by_soundfile(data)
    for epoch in range(12):
        payload = make_payload(RECIPE, data, Key(3, epoch, 0), WINDOW)
        start, samples = struct.unpack_from("<QQ", payload)
        piece = read_by_soundfile(payload[PLACE:])
        assert samples == 30_011
        assert np.array_equal(piece, whole[:, start : start + piece.shape[1]])
        assert len(payload) < len(data)


def variable(samples=40_000, channels=1):
    data = sound_file("flac 16", samples, channels, 5)
    starts, blocks = _flac.walk(data, flac.parse(data).start, channels)
    return as_variable(data, starts, blocks)


def test_windows_of_a_flac_file_with_blocks_of_variable_size():
    data = variable()
    whole = read_by_soundfile(data)
    assert whole.shape == (1, 40_000)
    for epoch in range(8):
        payload = make_payload(RECIPE, data, Key(0, epoch, 1), WINDOW)
        start = struct.unpack_from("<Q", payload)[0]
        piece = read_by_soundfile(payload[PLACE:])
        assert np.array_equal(piece, whole[:, start : start + piece.shape[1]])
    assert_same_bits_at_every_cut(RECIPE, data, Key(0, 0, 1))


def test_frames_are_found_where_they_begin_also_with_numbers_of_several_bytes():
    data = sound_file("flac 16", 4_096 * 140 + 17)
    starts, blocks = _flac.walk(data, flac.parse(data).start, 1)
    assert blocks == [4_096] * 140 + [17]
    assert starts[-1] == len(data)
    late = Pipeline([ops.DecodeAudio(), ops.CenterTimeCrop(4_000)])
    assert_same_bits_at_every_cut(late, data, Key(0, 0, 0))


@pytest.mark.parametrize("at", [0.3, 0.6, 0.95])
def test_one_damaged_byte_anywhere_and_there_is_no_window(at):
    data = bytearray(sound_file("flac 16", 30_000))
    data[int(at * len(data))] ^= 0x10
    with pytest.raises(OpError):
        make_payload(RECIPE, bytes(data), Key(0, 0, 0), WINDOW)


def test_cutting_by_places_that_are_wrong_is_refused():
    data = sound_file("flac 16", 30_000)
    starts, _ = _flac.walk(data, flac.parse(data).start, 1)
    for wrong in ([start + 1 for start in starts], [start + len(data) for start in starts]):
        with pytest.raises(NotWindowable):
            _flac.cut(data, wrong, 0, 1)


@pytest.mark.parametrize("form", ["wav 16", "flac 16"])
def test_windows_from_the_network_are_checked_before_they_are_believed(form):
    payload = bytearray(make_payload(RECIPE, sound_file(form, 30_000), Key(0, 0, 0), WINDOW))
    for start, whole in ((0, 5), (2**63, 2**63 + 9_000), (29_999, 30_000), (0, 2**60)):
        lying = struct.pack("<QQ", start, whole) + payload[PLACE:]
        with pytest.raises(PayloadError):
            finish_payload(RECIPE, lying, Key(0, 0, 0), WINDOW)
    for wrong in (b"", bytes(20), bytes(payload[:60]), sound_file(form, 30_000)):
        with pytest.raises(PayloadError):
            finish_payload(RECIPE, wrong, Key(0, 0, 0), WINDOW)


def test_a_window_that_does_not_hold_the_crop_is_an_error():
    data = sound_file("wav 16", 30_000)
    payload = make_payload(RECIPE, data, Key(0, 0, 0), WINDOW)
    with pytest.raises(Error, match="not in the part that was decoded"):
        finish_payload(RECIPE, payload, Key(0, 1, 0), WINDOW)


def test_sound_shorter_than_the_crop_is_sent_whole():
    pipeline = Pipeline([ops.DecodeAudio(), ops.RandomTimeCrop(2_000, True)])
    data = sound_file("wav 16", 1_999)
    with pytest.raises(OpError, match="needs all"):
        make_payload(pipeline, data, Key(0, 0, 0), WINDOW)
    assert_same_bits_at_every_cut(pipeline, data, Key(0, 0, 0))


def test_the_flac_codec_keeps_16_and_24_bits_and_refuses_what_it_would_round():
    pipeline = Pipeline([ops.DecodeAudio(), ops.RandomTimeCrop(2_000)])
    for form, is_exact in (
        ("wav 16", True),
        ("wav 24", True),
        ("wav 8", True),
        ("wav float", False),
        ("wav 32", False),
    ):
        data, key = sound_file(form, 9_000, 2), Key(0, 1, 2)
        if not is_exact:
            with pytest.raises(OpError, match="round"):
                make_payload(pipeline, data, key, Cut(2, "flac"))
            continue
        payload = make_payload(pipeline, data, key, Cut(2, "flac"))
        found = finish_payload(pipeline, payload, key, Cut(2, "flac"))
        assert np.array_equal(found.array, pipeline.run(data, key).array)
        for wrong in (
            payload[:-9],
            payload[:30],
            b"",
            sound_file("flac 16", 2_001, 2),
            sound_file("flac 16", 2_000, 1),
        ):
            if wrong.startswith(b"fLaC") and len(wrong) > len(payload) // 2 and form != "wav 16":
                continue
            with pytest.raises(PayloadError):
                finish_payload(
                    Pipeline([ops.DecodeAudio(channels=2), ops.RandomTimeCrop(2_000)]), wrong, key, Cut(2, "flac")
                )


def test_only_the_part_that_is_needed_is_decoded_of_a_local_file():
    for form in ("wav 16", "flac 16"):
        data, key = sound_file(form, 60_000), Key(0, 0, 0)
        part = WINDOWS["audio"].cut_down(data, RECIPE, key)
        assert part.array.shape[1] < 2_000 + 2 * 4_608
        assert part.whole_sizes == (60_000,)
        assert np.array_equal(finish_payload(RECIPE, data, key, RAW).array, RECIPE.run(data, key).array)


# --- hostile files ----------------------------------------------------------------------------------------------------


def mutated(data, rng):
    """Return a file with a few bytes changed, cut out, doubled or cut off."""
    made = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(0, min(len(made), 200) if rng.random() < 0.6 else len(made)))
        what = rng.integers(0, 5)
        if what == 0:
            made[at] ^= 1 << int(rng.integers(0, 8))
        elif what == 1:
            made[at] = int(rng.integers(0, 256))
        elif what == 2:
            del made[at : at + int(rng.integers(1, 40))]
        elif what == 3:
            made[at:at] = made[at : at + int(rng.integers(1, 40))]
        else:
            made[at : at + 4] = bytes(rng.choice([0, 255, 127, 128], 4).tolist())
        if not made:
            made = bytearray(b"\0")
    return bytes(made)


def check_mutations(form, count, seed):
    data = sound_file(form, 6_000, 2, 1)
    pipeline = Pipeline([ops.DecodeAudio(max_samples=1 << 20), ops.RandomTimeCrop(700, True)])
    rng, key, payload = np.random.default_rng(seed), Key(0, 0, 0), None
    for number in range(count):
        broken = mutated(data, rng)
        whole = payload = None
        with suppress(OpError):
            whole = pipeline.run(broken, key).array
        try:
            payload = make_payload(pipeline, broken, key, WINDOW)
            found = finish_payload(pipeline, payload, key, WINDOW).array
            assert whole is None or found.tobytes() == whole.tobytes(), number
        except (OpError, PayloadError):
            pass
        if payload is not None:
            with suppress(OpError, PayloadError):
                finish_payload(pipeline, mutated(payload, rng), key, WINDOW)


@pytest.mark.parametrize("form", ["wav 16", "flac 16"])
def test_mutated_files_end_in_typed_errors_or_the_same_bits(form):
    check_mutations(form, 2_000, 0)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["wav 16", "wav 24", "wav float", "flac 16", "flac 24"])
def test_a_hundred_thousand_mutated_files(form):
    check_mutations(form, 100_000, 1)
