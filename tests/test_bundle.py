"""Bundles against `struct` and hostile bytes."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon.bundle import head_bytes, pack, unpack
from sophon.errors import PayloadError


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=64))
def test_parts_come_out_as_they_went_in(parts):
    data = pack(parts)
    assert len(data) == head_bytes(len(parts)) + sum(map(len, parts))
    assert [bytes(part) for part in unpack(memoryview(data), len(parts))] == parts


def test_the_layout_is_the_documented_one():
    assert pack([b"ab", b"", b"c"]) == b"SFB1" + struct.pack("<IQQQ", 3, 2, 0, 1) + b"abc"
    assert pack([b"SFB1"]) == b"SFB1", "a single field is its file, whatever is in it"


@given(st.binary(max_size=60), st.integers(2, 5))
def test_anything_else_is_refused(data, parts):
    with pytest.raises(PayloadError, match="bundle"):
        unpack(data, parts)


@given(st.data())
def test_no_number_inside_is_trusted(data):
    whole = bytearray(pack([b"picture", b"mask", b"text"]))
    at = data.draw(st.integers(0, head_bytes(3) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    try:
        parts = unpack(whole, 3)
    except PayloadError:
        return
    assert b"".join(parts) == b"picturemasktext", "sizes that add up by chance reach no further than the bundle"


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_bundle_that_was_cut_short_is_refused(cut):
    data = pack([b"picture", b"mask", b"text"])
    with pytest.raises(PayloadError):
        unpack(data[:-cut], 3)
