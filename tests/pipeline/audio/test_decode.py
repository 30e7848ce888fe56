"""DecodeAudio gives what libsndfile gives, and refuses what is not whole."""

import struct

import numpy as np
import pytest

from sophon.errors import ConfigError, OpError
from sophon.pipeline import Key, Pipeline, ops
from sophon.pipeline.ops.audio import wav
from tests.support.sounds import FORMS, read_by_soundfile, sound_file


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("form", FORMS)
def test_the_samples_are_those_of_libsndfile_to_the_last_bit(form, channels):
    data = sound_file(form, 5_001, channels)
    found = ops.DecodeAudio().apply(data)
    assert found.array.dtype == np.float32
    assert found.array.flags.c_contiguous
    assert found.scale == (8_000.0,)
    assert found.array.tobytes() == read_by_soundfile(data).tobytes()


def test_the_largest_and_smallest_numbers_are_those_of_libsndfile():
    for bits, numbers in ((16, [-(1 << 15), (1 << 15) - 1, 0, 1, -1]), (32, [-(1 << 31), (1 << 31) - 1, 1, 77, -3])):
        samples = np.array(numbers, f"<i{bits // 8}").tobytes()
        data = wav.written(wav.form_of(1, 8000, bits), samples)
        assert ops.DecodeAudio().apply(data).array.tobytes() == read_by_soundfile(data).tobytes()


def test_chunks_before_the_samples_and_after_them_are_passed_over():
    plain = sound_file("wav 16", 100)
    body = plain[12:]
    odd = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    data = b"RIFF" + struct.pack("<I", len(body) + len(odd) * 2 + 4) + b"WAVE" + odd + body + odd
    assert np.array_equal(ops.DecodeAudio().apply(data).array, read_by_soundfile(plain))


def test_a_file_that_was_written_to_a_pipe_goes_on_to_its_end():
    data = bytearray(sound_file("wav 16", 100))
    at = data.index(b"data") + 4
    data[at : at + 4] = b"\xff\xff\xff\xff"
    assert ops.DecodeAudio().apply(bytes(data)).array.shape == (1, 100)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "neither WAV nor FLAC: 0 bytes"),
        (b"OggS" + bytes(40), "neither WAV nor FLAC"),
        (sound_file("wav 16", 100)[:-1], "cut off"),
        (sound_file("wav 16", 100)[:30], "a format chunk|has no samples"),
        (sound_file("wav 16", 100).replace(b"data", b"junk"), "has no samples"),
        (sound_file("flac 16", 5000)[:-100], "FLAC"),
        (sound_file("flac 16", 5000)[:20], "cut off"),
    ],
)
def test_damaged_files_end_in_an_error_that_says_what_was_found(data, says):
    pipeline = Pipeline([ops.DecodeAudio()])
    with pytest.raises(OpError, match=says) as caught:
        pipeline.run(data, Key(0, 0, 3))
    assert "sample 3" in str(caught.value)


def test_a_header_that_lies_about_its_size_allocates_nothing():
    data = bytearray(sound_file("flac 16", 5000))
    data[21] |= 0x0F  # the upper bits of how many samples there are
    with pytest.raises(OpError, match="declares"):
        ops.DecodeAudio().apply(bytes(data))
    with pytest.raises(OpError, match="exceeds the limit of 99 values"):
        ops.DecodeAudio(max_samples=99).apply(sound_file("wav 16", 100))


def test_files_of_another_rate_or_number_of_channels_are_refused_with_a_remedy():
    with pytest.raises(OpError, match="8,000 samples per second, expected 44,100") as caught:
        ops.DecodeAudio(rate=44_100).apply(sound_file())
    assert "Resample" in caught.value.remedy
    with pytest.raises(OpError, match="2 channels, expected 1") as caught:
        ops.DecodeAudio(channels=1).apply(sound_file(channels=2))
    assert "Mono" in caught.value.remedy


def test_compressed_samples_are_refused():
    data = bytearray(sound_file("wav 16", 100))
    data[20:22] = struct.pack("<H", 2)  # ADPCM
    with pytest.raises(OpError, match="format 0x2"):
        ops.DecodeAudio().apply(bytes(data))


def test_ops_for_pictures_and_for_sound_do_not_mix():
    with pytest.raises(ConfigError, match="CenterCrop takes an image"):
        Pipeline([ops.DecodeAudio(), ops.CenterCrop(8)])
    with pytest.raises(ConfigError, match="RandomTimeCrop takes an audio"):
        Pipeline([ops.Decode(), ops.RandomTimeCrop(8)])
    with pytest.raises(ConfigError, match="samples"):
        ops.RandomTimeCrop(0)


def test_the_specimen_is_a_file_that_libsndfile_reads():
    for decode in (ops.DecodeAudio(), ops.DecodeAudio(rate=16_000, channels=1)):
        data = decode.specimen()
        assert decode.apply(data).array.tobytes() == read_by_soundfile(data).tobytes()
