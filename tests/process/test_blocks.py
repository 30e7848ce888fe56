"""Memory of batches is used again once nobody looks at it any more, and not before."""

import os
import threading

import numpy as np
import pytest

from sophon.process.blocks import Blocks
from sophon.process.segments import array_in
from tests.support.holders import HOLDERS, seen

SIZE = 1 << 16


def _filled(blocks, value, size=SIZE):
    """Return an array that fills a block of its own."""
    array = array_in(blocks.take(size), (size // 4,), "<f4")
    array[...] = value
    return array


def _address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("how", HOLDERS)
def test_memory_that_somebody_holds_in_any_way_is_not_used_again(how):
    blocks = Blocks(1 << 30)
    array = _filled(blocks, 1.0)
    held = HOLDERS[how](array)
    before = seen(held)
    del array
    others = [_filled(blocks, 2.0) for _ in range(3)]
    assert seen(held) == before
    del others


def test_memory_that_nobody_holds_is_used_again():
    blocks = Blocks(1 << 30)
    addresses = set()
    for _ in range(20):
        array = _filled(blocks, 1.0)
        addresses.add(_address(array))
        assert _address(array) % 64 == 0
        del array
    assert len(addresses) == 1


def test_the_last_batch_of_an_epoch_does_not_cost_the_others_their_memory():
    blocks = Blocks(1 << 30)
    addresses = set()
    for size in (SIZE, SIZE, SIZE // 8, SIZE, SIZE - 4, SIZE):
        array = _filled(blocks, 1.0, size)
        assert array.nbytes == size
        addresses.add(_address(array) if size > SIZE // 2 else 0)
        del array
    assert len(addresses) == 2


def test_no_more_is_kept_than_was_said():
    blocks = Blocks(3 * SIZE)
    arrays = [_filled(blocks, number) for number in range(8)]
    first = {_address(array) for array in arrays}
    del arrays
    assert len(blocks._free) == 3
    again = [_filled(blocks, 0.0) for _ in range(3)]
    assert {_address(array) for array in again} <= first


def test_larger_ones_replace_smaller_ones():
    blocks = Blocks(1 << 30)
    small = _filled(blocks, 1.0)
    large = _filled(blocks, 2.0, 2 * SIZE)
    del small
    assert blocks._free == []
    del large
    assert [len(memory) for memory in blocks._free] == [2 * SIZE]


def test_threads_that_take_and_free_never_see_each_others_values():
    blocks, wrong = Blocks(4 * SIZE), []

    def work(number):
        for turn in range(300):
            size = SIZE << (turn % 3)
            array = _filled(blocks, number, size)
            other = _filled(blocks, -number, size)
            if not ((array == number).all() and (other == -number).all()):
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_and_its_parent_do_not_disturb_each_other():
    blocks = Blocks(1 << 30)
    array = _filled(blocks, 1.0)
    child = os.fork()
    if child == 0:
        held = array[:8]
        del array
        _filled(blocks, 2.0)
        os._exit(0 if (held == 1.0).all() else 1)
    kept = np.array(array)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(array, kept)
