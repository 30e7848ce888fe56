"""Listings as they are sent, whole, damaged and hostile."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon.errors import ProtocolError
from sophon.link import listing
from sophon.link.listing import piece_of, received
from sophon.store.manifest import Manifest


def _manifest(ids, labels=True):
    numbers = np.arange(len(ids))
    return Manifest("folder", pa.array(ids, pa.large_string()), 7 * numbers, numbers - 1 if labels else None)


def _sent(manifest):
    return received(lambda start: piece_of(manifest, start), len(manifest), manifest.fingerprint)


@given(
    st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=30), max_size=60),
    st.booleans(),
    st.integers(1, 15),
    st.integers(1, 200),
)
def test_what_is_sent_is_received(ids, labels, rows, id_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "_ROWS", rows)
        patch.setattr(listing, "_PIECE_ID_BYTES", id_bytes)
        manifest = _manifest(ids, labels)
        found = _sent(manifest)
    assert found.ids.to_pylist() == ids
    assert found.sizes.tolist() == manifest.sizes.tolist()
    assert (found.labels is None) is not labels


def test_a_million_samples_are_small_and_few_pieces():
    ids = [f"n{i // 1300:08d}/n{i // 1300:08d}_{i * 7919 % 100003}.JPEG" for i in range(200_000)]
    manifest = _manifest(ids)
    pieces = [piece_of(manifest, start) for start in range(0, len(ids), 50_000)]
    assert sum(len(part) for piece in pieces for part in piece) < 10 * len(ids)
    assert _sent(manifest).ids.equals(manifest.ids)


GOOD = piece_of(_manifest(["a/x", "b/ü"]), 0)


def _changed(**fields):
    return [json.dumps({**json.loads(GOOD[0]), **fields}).encode(), GOOD[1]]


@pytest.mark.parametrize(
    "answer",
    [
        [],
        GOOD[:1],
        [*GOOD, b""],
        [b"[]", GOOD[1]],
        _changed(rows=0),
        _changed(rows=3),
        _changed(rows=True),
        _changed(rows=-1),
        _changed(rows="2"),
        _changed(rows=1),
        _changed(id_bytes=-1),
        _changed(id_bytes=1 << 60),
        _changed(id_bytes=5),
        _changed(id_bytes=8),
        _changed(has_labels=False),
        _changed(kind=7),
        _changed(kind="x" * 1000),
        [GOOD[0], b""],
        [GOOD[0], GOOD[1][:-3]],
        [GOOD[0], b"\0" * 40],
        [GOOD[0], pa.Codec("zstd").compress(b"\xff" * 47, asbytes=True)],
        [
            GOOD[0],
            pa.Codec("zstd").compress(np.array([3, 4], "<u4").tobytes() + b"a/\xff\xfe\xfe\xfe\xfe" + b"\0" * 32),
        ],
        [GOOD[0], pa.Codec("zstd").compress(np.array([3, 4], "<u4").tobytes() + b"a/xb/xy" + b"\xff" * 32)],
        [GOOD[0], pa.Codec("zstd").compress(np.array([3, 4], "<u4").tobytes() + b"a/xb/xy" + b"\0" * 32)],
        [GOOD[0], pa.Codec("zstd").compress(b"\0" * (1 << 24), asbytes=True)],
    ],
)
def test_anything_else_is_refused(answer):
    manifest = _manifest(["a/x", "b/ü"])
    with pytest.raises(ProtocolError):
        received(lambda _: answer, len(manifest), manifest.fingerprint)


def test_the_fingerprint_must_be_that_of_the_rows():
    with pytest.raises(ProtocolError, match="fingerprint"):
        received(lambda _: GOOD, 2, "0" * 32)


def test_a_listing_in_crumbs_is_refused():
    manifest = _manifest([f"{i}.jpg" for i in range(100)])

    def crumb(start):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(listing, "_ROWS", 1)
            return piece_of(manifest, start)

    with pytest.raises(ProtocolError, match="1 rows while 100 are left"):
        received(crumb, len(manifest), manifest.fingerprint)


def test_an_id_with_a_zero_byte_is_refused():
    # It would sort between the copies of an honest sample, which were then counted twice.
    with pytest.raises(ProtocolError, match="zero bytes"):
        _sent(_manifest(["a/x", "a\0b/y"]))
