"""Random numbers and boxes of many samples at once, against those that are drawn one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sophon.pipeline import Key, Rng, portable
from sophon.pipeline import streams as streams_module
from sophon.pipeline.streams import Streams

WORDS = st.integers(0, 2**64 - 1)


@pytest.fixture(autouse=True, params=["compiled", "numpy"])
def _by(request, monkeypatch):
    """Draw by the extension, where it was built, and by NumPy."""
    if request.param == "numpy":
        monkeypatch.setattr(streams_module, "compiled", None)
    elif streams_module.compiled is None:
        pytest.skip("built without a compiler")


@settings(max_examples=200, deadline=None)
@given(WORDS, WORDS, st.integers(0, 63), st.lists(WORDS, min_size=1, max_size=5), st.integers(0, 9))
def test_words_are_those_of_one_stream_after_the_other(seed, epoch, position, samples, number):
    streams = Streams(seed, epoch, position, np.array(samples, np.uint64))
    one_by_one = [Rng(Key(seed, epoch, sample), position) for sample in samples]
    expected = [[rng.word() for _ in range(number + 1)][-1] for rng in one_by_one]
    assert streams.words(number).tolist() == expected


@settings(max_examples=100, deadline=None)
@given(WORDS, st.floats(-50, 50), st.floats(0, 50), st.floats(1e-6, 1e6), st.integers(1, 2**32 - 1))
def test_numbers_are_those_of_one_stream_after_the_other(seed, low, width, least, bound):
    samples = np.arange(6)
    streams = Streams(seed, 3, 1, samples)
    rngs = [Rng(Key(seed, 3, int(sample)), 1) for sample in samples]
    assert streams.uniform(0, low, low + width).tolist() == [rng.uniform(low, low + width) for rng in rngs]
    assert streams.log_uniform(1, least, 3 * least).tolist() == [rng.log_uniform(least, 3 * least) for rng in rngs]
    assert streams.below(2, np.full(6, bound)).tolist() == [rng.below(bound) for rng in rngs]


def test_each_sample_may_have_an_epoch_of_its_own():
    epochs, samples = np.array([4, 0, 7]), np.array([1, 2, 1])
    expected = [Rng(Key(5, int(e), int(s)), 2).word() for e, s in zip(epochs, samples, strict=True)]
    assert Streams(5, epochs, 2, samples).words(0).tolist() == expected


@pytest.mark.parametrize("epochs", [3, np.arange(8)])
def test_some_of_the_streams_go_on_as_they_were(epochs):
    streams = Streams(1, epochs, 1, np.arange(8))
    before = streams.words(1)
    rows = np.array([6, 2])
    some = streams.of(rows)
    assert some.words(1).tolist() == before[rows].tolist()
    assert some.words(5).tolist() == streams.words(5)[rows].tolist()


@given(st.lists(st.floats(-690, 690), min_size=1, max_size=20))
def test_exponentials_are_the_same_one_by_one_and_together(numbers):
    assert portable.exp_array(np.array(numbers)).tolist() == [portable.exp(number) for number in numbers]
