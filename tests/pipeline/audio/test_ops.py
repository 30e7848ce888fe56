"""Ops for sound against SciPy and NumPy; the bits of some of them, which no machine may change."""

import hashlib
from math import gcd

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sophon.errors import ConfigError, OpError
from sophon.pipeline import Key, Pipeline, Rng, ops, spec_of
from sophon.pipeline.ops.audio.sound import sound
from sophon.pipeline.ops.audio.waves import bessel_i0, fft, sines
from sophon.pipeline.part import Signal
from sophon.pipeline.region import needed_boxes, needed_region
from tests.support.sounds import tone


def made(samples, channels=1, rate=8_000, seed=0):
    return sound(np.ascontiguousarray(tone(samples, channels, seed).T, dtype=np.float32), rate)


@pytest.mark.parametrize(("source", "target"), [(44_100, 16_000), (16_000, 44_100), (8_000, 4_000), (48_000, 44_100)])
def test_resampling_is_scipys_within_a_millionth(source, target):
    from scipy.signal import resample_poly

    value = made(3_001, 2, source)
    found = ops.Resample(target).apply(value, None)
    common = gcd(source, target)
    expected = resample_poly(value.array.astype(np.float64), target // common, source // common, axis=1)
    assert found.array.shape == expected.shape
    assert np.abs(found.array - expected).max() < 1e-6
    assert found.scale == (float(target),)
    assert ops.Resample(target).output(spec_of(value)).shape == found.array.shape


@given(
    st.integers(2, 4_000),
    st.sampled_from([(3, 2), (1, 3), (160, 441), (7, 5), (2, 1)]),
    st.floats(0, 1),
    st.floats(0, 1),
)
@settings(max_examples=60, deadline=None)
def test_a_part_is_resampled_to_the_bits_of_the_whole(samples, ratio, place, share):
    up, down = ratio
    value, op = made(samples, 1, down * 100), ops.Resample(up * 100)
    whole = op.apply(value, None)
    count = max(1, int(share * whole.array.shape[1]))
    start = int(place * (whole.array.shape[1] - count))
    box = op.box_before((start, count), spec_of(value), None)
    assert box[0] >= 0
    assert box[0] + box[1] <= samples
    part = Signal(value.piece(box), value.kind, value.scale, (box[0],), (samples,))
    found = op.apply(part, None)
    assert found.whole_sizes == whole.whole_sizes
    assert np.array_equal(found.piece((start, count)), whole.piece((start, count)))


def test_rates_without_a_small_ratio_are_refused():
    with pytest.raises(OpError, match="the ratio is"):
        ops.Resample(44_101).apply(made(100, 1, 44_100), None)


def test_sines_and_transforms_are_those_of_numpy_within_rounding():
    cos, sin = sines(np.arange(-300, 900), 97)
    angle = 2 * np.pi * (np.arange(-300, 900) % 97) / 97
    assert max(np.abs(cos - np.cos(angle)).max(), np.abs(sin - np.sin(angle)).max()) < 2e-15
    assert np.allclose(bessel_i0(np.linspace(0, 14, 50)), np.i0(np.linspace(0, 14, 50)), rtol=1e-12)
    for length in (1, 2, 6, 7, 49, 400, 512):
        rows = np.random.default_rng(length).normal(size=(3, length))
        re, im = fft(rows)
        assert np.abs(re + 1j * im - np.fft.rfft(rows)).max() < 1e-12


def expected_mels(value, n_fft, hop, n_mels, rate):
    from scipy.signal import get_window

    """Return a mel spectrogram by NumPy's own transform, as torchaudio's documentation describes it."""
    padded = np.pad(value.array.astype(np.float64), ((0, 0), (n_fft // 2, n_fft // 2)), mode="reflect")
    frames = np.stack([padded[:, i : i + n_fft] for i in range(0, padded.shape[1] - n_fft + 1, hop)], axis=1)
    power = np.abs(np.fft.rfft(frames * get_window("hann", n_fft), axis=-1)) ** 2

    def mel(hz):
        return 2595.0 * np.log10(1.0 + hz / 700.0)

    corners = 700.0 * (10.0 ** (np.linspace(mel(0.0), mel(rate / 2), n_mels + 2) / 2595.0) - 1.0)
    hertz = np.linspace(0, rate // 2, n_fft // 2 + 1)
    slopes = corners[:, None] - hertz[None, :]
    widths = np.diff(corners)[:, None]
    bank = np.maximum(0.0, np.minimum(-slopes[:-2] / widths[:-1], slopes[2:] / widths[1:]))
    return np.einsum("cfk,mk->cmf", power, bank)


@pytest.mark.parametrize(("n_fft", "hop", "n_mels"), [(400, 200, 40), (512, 160, 32)])
def test_mel_spectrograms_and_mfccs_are_those_of_the_textbook(n_fft, hop, n_mels):
    from scipy.fft import dct

    value = made(4_001, 2, 16_000)
    op = ops.MelSpectrogram(16_000, n_fft, hop, n_mels)
    found, expected = op.apply(value, None), expected_mels(value, n_fft, hop, n_mels, 16_000)
    assert found.dtype == np.float32
    assert found.shape == expected.shape == op.output(spec_of(value)).shape
    assert np.abs(found - expected).max() < 1e-6 * expected.max()
    loud = 10 * np.log10(np.maximum(expected, 1e-10))
    assert np.abs(ops.MelSpectrogram(16_000, n_fft, hop, n_mels, decibels=True).apply(value, None) - loud).max() < 1e-3
    cepstrum = dct(loud, axis=1, norm="ortho")[:, :13]
    mfcc = ops.MFCC(16_000, n_fft, hop, n_mels, n_mfcc=13)
    assert np.abs(mfcc.apply(value, None) - cepstrum).max() < 1e-3
    assert mfcc.output(spec_of(value)).shape == cepstrum.shape


def test_the_bits_of_filters_and_spectrograms_are_the_same_on_every_machine():
    """Whoever changes one of these changes results: a new `version` of the op is due."""
    steps = np.arange(6_000, dtype=np.int64)
    waves = ((steps * steps * 31 + steps * 17) % 4_001 - 2_000).astype(np.float32)[None] * np.float32(2.0**-11)
    value = sound(np.ascontiguousarray(waves), 44_100)
    slow = ops.Resample(16_000).apply(value, None)
    digests = [
        hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
        for array in (
            slow.array,
            ops.MelSpectrogram(16_000, 400, 160, 40).apply(slow, None),
            ops.MFCC(16_000, 512, 160, 40, n_mfcc=13).apply(slow, None),
        )
    ]
    assert digests == ["fdb36e8679505149", "99ad02509a1e29f7", "2d4641ad8d152ff4"]


def test_sound_that_a_spectrogram_cannot_be_made_of_is_refused_with_a_remedy():
    with pytest.raises(OpError, match="8000 samples per second, expected 16,000") as caught:
        ops.MelSpectrogram(16_000).apply(made(900), None)
    assert "Resample(16000)" in caught.value.remedy
    with pytest.raises(OpError, match="too few"):
        ops.MelSpectrogram(8_000).apply(made(200), None)
    with pytest.raises(ConfigError, match="n_mfcc"):
        ops.MFCC(8_000, n_mels=20, n_mfcc=30)


def test_crops_pads_gains_and_mono_do_what_they_say():
    value = made(100, 3)
    assert np.array_equal(ops.CenterTimeCrop(40).apply(value, None).array, value.array[:, 30:70])
    assert np.array_equal(ops.RandomTimeCrop(40).apply(value, 7).array, value.array[:, 7:47])
    padded = ops.RandomTimeCrop(130, pad_if_needed=True).apply(value, 0).array
    assert np.array_equal(padded, np.pad(value.array, ((0, 0), (0, 30))))
    assert np.array_equal(ops.TimePad(130).apply(value, None).array, padded)
    assert ops.TimePad(40).apply(value, None).array.shape == (3, 100)
    assert np.array_equal(ops.Gain(0.5).apply(value, None).array, value.array * np.float32(0.5))
    assert ops.Gain(9.0, clip=True).apply(value, None).array.max() == 1.0
    mean = (value.array[0] + value.array[1] + value.array[2]) / np.float32(3)
    assert np.array_equal(ops.Mono().apply(value, None).array, mean[None])
    with pytest.raises(OpError, match="100 samples, but the crop needs 130"):
        ops.RandomTimeCrop(130).apply(value, 0)
    factor = ops.RandomGain(-6, -6).draw(Rng(Key(0, 0, 0), 1), spec_of(value))
    assert factor == pytest.approx(10 ** (-6 / 20), rel=1e-12)


def test_masks_cover_what_was_drawn_and_draw_within_bounds():
    value = np.ones((1, 20, 50), np.float32)
    for epoch in range(200):
        for op, axis in ((ops.TimeMask(10), 2), (ops.FrequencyMask(10, p=0.2), 1)):
            low, high = op.draw(Rng(Key(0, epoch, 0), 3), spec_of(value))
            assert 0 <= low <= high <= value.shape[axis]
            assert high - low < (10 if axis == 2 else 4)
            masked = op.apply(value, (low, high))
            assert int((masked == 0).sum()) == (high - low) * value.size // value.shape[axis]
    assert value.all()


def test_the_intervals_of_many_sounds_are_those_of_each():
    pipeline = Pipeline(
        [
            ops.DecodeAudio(),
            ops.Mono(),
            ops.TimePad(700),
            ops.RandomGain(),
            ops.RandomTimeCrop(500, True),
            ops.Gain(2.0),
        ]
    )
    lengths = np.random.default_rng(0).integers(1, 3_000, 200)
    samples = np.arange(200) * 7
    starts, counts = needed_boxes(pipeline, 5, 2, samples, (lengths,))
    for start, count, length, sample in zip(starts, counts, lengths, samples, strict=True):
        spec = ops.DecodeAudio().sized((int(length),))
        box = needed_region(pipeline, Key(5, 2, int(sample)), spec)
        assert (start, count) == (box or (0, length))
