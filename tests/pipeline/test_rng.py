"""Invariant: random numbers depend on (seed, epoch, sample, position) and on nothing else."""

import math
import threading

import numpy as np
import pytest

from sophon.errors import ConfigError
from sophon.pipeline.rng import Key, Rng


def _stream(key: Key, position: int = 0, count: int = 20) -> list[int]:
    rng = Rng(key, position)
    return [rng.word() for _ in range(count)]


def test_the_stream_is_fixed_for_ever():
    # Written down from the first release: a change here changes every training run in the world.
    assert _stream(Key(0, 0, 0), 0, 3) == [213000021201967259, 4455796210202625458, 2055444239878205049]
    assert _stream(Key(1, 2, 3), 4, 2) == [11908576178598684996, 2564810913301908829]


def test_uniform_integer_and_normal_numbers_are_fixed_for_ever():
    rng = Rng(Key(7, 1, 42), 2)
    assert [rng.uniform(), rng.uniform(-1.0, 1.0)] == [0.6320911956751154, -0.33054182590428205]
    assert [rng.below(1000) for _ in range(3)] == [220, 820, 852]
    assert rng.permutation(5) == (0, 4, 3, 1, 2)
    assert rng.log_uniform(0.75, 4 / 3) == 1.2123183335716776
    assert rng.normals((2, 2)).tolist() == [
        [-1.0246469974517822, -0.81533282995224],
        [-0.7683448791503906, 1.8347872495651245],
    ]


def _philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x64-10 as Salmon et al. published it (SC 2011), in plain integers."""
    mask = 2**64 - 1
    for _ in range(10):
        left, right = 0xD2E7470EE14C6C93 * counter[0], 0xCA5A826395121157 * counter[2]
        counter = [
            (right >> 64) ^ counter[1] ^ key[0],
            right & mask,
            (left >> 64) ^ counter[3] ^ key[1],
            left & mask,
        ]
        key = [(key[0] + 0x9E3779B97F4A7C15) & mask, (key[1] + 0xBB67AE8584CAA73B) & mask]
    return counter


def test_the_stream_is_philox_of_the_four_integers():
    for block in (1, 2, 3):  # NumPy counts a block before it is drawn
        words = _stream(Key(11, 22, 33), 44, 12)[4 * (block - 1) : 4 * block]
        assert words == _philox([block, 0, 44, 33], [11, 22])


@pytest.mark.parametrize("other", [Key(1, 0, 0), Key(0, 1, 0), Key(0, 0, 1)])
def test_every_part_of_the_key_matters(other):
    assert not set(_stream(Key(0, 0, 0))) & set(_stream(other))


def test_the_position_of_the_op_matters():
    assert not set(_stream(Key(0, 0, 0), 0)) & set(_stream(Key(0, 0, 0), 1))


def test_long_streams_do_not_run_into_those_of_neighbours():
    streams = [_stream(Key(0, 0, sample), position, 400) for sample in range(3) for position in range(3)]
    assert len({word for stream in streams for word in stream}) == 9 * 400


def test_normals_take_the_words_that_follow_in_the_stream_and_none_twice():
    words = _stream(Key(0, 0, 0), 0, 20)
    rng = Rng(Key(0, 0, 0), 0)  # holds the first eight words
    signs = np.sign(rng.normals((8,)))
    assert signs.tolist() == [1.0 if word >= 2**63 else -1.0 for word in words[8:16]]
    assert [rng.word() for _ in range(12)] == words[:8] + words[16:20]


def test_order_and_threads_do_not_matter():
    keys = [Key(3, epoch, sample) for epoch in range(4) for sample in range(50)]
    expected = {key: _stream(key, 5) for key in keys}
    found: dict[Key, list[int]] = {}

    def work(part: list[Key]) -> None:
        for key in part:
            found[key] = _stream(key, 5)

    threads = [threading.Thread(target=work, args=(keys[::-1][i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_uniform_numbers_are_uniform():
    numbers = np.array([Rng(Key(0, 0, sample), 0).uniform() for sample in range(20_000)])
    grid = (np.arange(len(numbers)) + 0.5) / len(numbers)
    assert np.abs(np.sort(numbers) - grid).max() < 1.95 / math.sqrt(len(numbers))  # Kolmogorov–Smirnov at 0.1 %


def test_integers_are_uniform():
    counts = np.bincount([Rng(Key(0, 1, sample), 0).below(7) for sample in range(14_000)], minlength=7)
    assert ((counts - 2000) ** 2 / 2000).sum() < 22.5  # chi-square with 6 degrees of freedom at 0.1 %


def test_permutations_are_uniform():
    orders = [Rng(Key(0, 2, sample), 0).permutation(3) for sample in range(6_000)]
    counts = np.array([orders.count(order) for order in sorted(set(orders))])
    assert len(counts) == 6
    assert ((counts - 1000) ** 2 / 1000).sum() < 20.5  # 5 degrees of freedom at 0.1 %


def test_normal_numbers_are_normal():
    numbers = np.sort(Rng(Key(0, 0, 9), 3).normals((200, 250)).reshape(-1).astype(float))
    cdf = np.array([0.5 * (1 + math.erf(x / math.sqrt(2))) for x in numbers])
    grid = (np.arange(len(numbers)) + 0.5) / len(numbers)
    assert np.abs(cdf - grid).max() < 1.95 / math.sqrt(len(numbers))
    assert np.abs(numbers).max() > 3.5


@pytest.mark.parametrize("bad", [(-1, 0, 0), (0, 2**64, 0), (0, 0, 1.5), ("0", 0, 0)])
def test_a_key_that_is_not_three_small_integers_is_refused(bad):
    with pytest.raises(ConfigError, match=r"must be an integer in 0 … 2\*\*64"):
        Key(*bad)
