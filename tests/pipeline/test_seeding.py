"""Seeded blocks: the same numbers inside, the user's own outside, one thread at a time."""

import os
import random
import threading

import numpy as np
import pytest
import torch

from sophon.pipeline.seeding import seeded
from tests.support.waiting import HANG_S


def _draw():
    return random.random(), np.random.random(), torch.rand(1).item()


def _states():
    numpy_state = np.random.get_state()
    return random.getstate(), numpy_state[1].tolist(), numpy_state[2:], torch.get_rng_state().tolist()


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_a_seed_gives_the_same_numbers_and_another_seed_others(seed):
    with seeded(seed):
        once = _draw()
    _draw()
    with seeded(seed):
        again = _draw()
    with seeded(seed ^ 0x100000001):
        other = _draw()
    assert once == again
    assert all(a != b for a, b in zip(once, other, strict=True))


def test_the_generators_are_put_back_however_the_block_ends():
    before = _states()
    with seeded(3):
        _draw()
    assert _states() == before
    with pytest.raises(KeyError), seeded(3):
        {}[_draw()]
    assert _states() == before


def test_a_block_within_a_block_goes_on_where_it_was():
    with seeded(5):
        expected = [_draw(), _draw()]
    with seeded(5):
        first = _draw()
        with seeded(6):
            _draw()
        assert [first, _draw()] == expected


def test_threads_take_turns():
    with seeded(7):
        expected = [_draw() for _ in range(50)]
    found = []

    def run():
        with seeded(7):
            found.append([_draw() for _ in range(50)])

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 8


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_is_forked_while_another_thread_is_seeding_does_not_wait_for_it():
    inside, done = threading.Event(), threading.Event()

    def hold():
        with seeded(1):
            inside.set()
            done.wait(HANG_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(HANG_S)
    child = os.fork()
    if child == 0:
        with seeded(2):
            os._exit(0)
    try:
        assert os.waitpid(child, 0)[1] == 0
    finally:
        done.set()
        thread.join()
