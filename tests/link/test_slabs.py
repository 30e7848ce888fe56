"""Buffers that are used again, but never while anything refers to them."""

import gc
import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon.link import slabs
from sophon.link.slabs import lend


@pytest.fixture(autouse=True)
def _nothing_kept():
    gc.collect()
    slabs._free.clear()


def test_a_buffer_is_used_again_when_nothing_refers_to_it():
    first = lend(1 << 20)
    address = first.ctypes.data
    held = pa.py_buffer(first).slice(10, 100)
    del first
    other = lend(1 << 20)
    assert other.ctypes.data != address  # a slice of a slice keeps it
    del held
    assert lend(1 << 19).ctypes.data == address


@given(st.lists(st.integers(0, 12 << 20), max_size=40))
def test_buffers_that_are_held_at_the_same_time_never_overlap(sizes):
    held = [lend(size) for size in sizes]
    assert [len(buffer) for buffer in held] == sizes
    places = sorted((buffer.ctypes.data, buffer.ctypes.data + len(buffer)) for buffer in held if len(buffer))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))


def test_only_a_few_are_kept():
    held = [lend(1 << 20) for _ in range(50)]
    del held
    assert 0 < len(slabs._free) <= 8
    assert all(slab.dtype == np.uint8 for slab in slabs._free)
