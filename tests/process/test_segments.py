"""Shared memory is used again once nobody looks at it any more, and not before."""

import gc
import os

import pytest

from sophon.process.segments import Segments, array_in, make_file, map_file
from tests.support.holders import HOLDERS, seen
from tests.support.open_files import open_files

SIZE = 1 << 16


def _filled(segments, value):
    """Return an array that fills a segment of its own."""
    _, memory = segments.take(SIZE)
    array = array_in(memory, (SIZE // 4,), "<f4")
    array[...] = value
    return array


@pytest.mark.parametrize("how", HOLDERS)
def test_memory_that_somebody_holds_in_any_way_is_not_used_again(how):
    segments = Segments(1 << 30)
    array = _filled(segments, 1.0)
    held = HOLDERS[how](array)
    before = seen(held)
    del array
    others = [_filled(segments, 2.0) for _ in range(3)]
    assert seen(held) == before
    del held, others


def test_memory_that_nobody_holds_is_used_again_and_its_file_is_closed_in_the_end():
    files = len(open_files())
    segments = Segments(1 << 30)
    numbers = set()
    for _ in range(20):
        segment, memory = segments.take(SIZE)
        numbers.add(segment.number)
        del memory
    assert len(numbers) == 1
    segments.close()
    assert len(open_files()) == files


def test_memory_that_a_forked_child_may_still_look_at_is_never_written_to_again():
    segments = Segments(1 << 30)
    array = _filled(segments, 1.0)
    there, go = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover - the child
        os.read(there, 1)
        os._exit(0 if (array == 1.0).all() else 1)
    del array
    others = [_filled(segments, 2.0) for _ in range(2)]
    os.write(go, b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    del others
    for file in (there, go):
        os.close(file)
    assert segments.take(SIZE)[0].number > 1, "the child's is not used again"
    assert segments.take(SIZE)[0].number <= 3, "and what was lent after the fork is"


def test_no_more_is_kept_than_the_bound_and_others_learn_what_is_gone():
    segments = Segments(2 * SIZE)
    held = [segments.take(SIZE) for _ in range(5)]
    numbers = [segment.number for segment, _ in held]
    del held
    gone = segments.take_gone()
    assert len(gone) == 3
    assert set(gone) < set(numbers)
    assert segments.take_gone() == []


def test_arrays_that_users_keep_hold_no_file_open_beyond_a_bound():
    gc.collect()  # files of earlier tests would be closed meanwhile
    segments = Segments(1 << 30)
    before = len(open_files())
    kept = []
    for _ in range(300):
        segment, memory = segments.take(1)
        segments.handed_out(segment)
        kept.append(memory)
    assert len(open_files()) - before <= 128
    del kept, memory, segment
    segments.close()
    assert len(open_files()) == before


@pytest.mark.parametrize("size", [0, 1, 4096, 4097])
def test_two_mappings_of_a_file_are_the_same_memory(size):
    file = make_file(size)
    one, other = map_file(file, size), map_file(file, size)
    os.close(file)
    one[...] = 7
    assert len(other) == size
    assert (other == 7).all()


def test_a_segment_may_be_empty():
    _, memory = Segments(1 << 20).take(0)
    assert array_in(memory, (3, 0), "<f4").shape == (3, 0)
