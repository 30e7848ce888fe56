"""Names of files: what they are made of, and that no file can be given the name of another."""

import hashlib
import random

import pytest

from sophon.codec import Cut, finish_payload, make_payload
from sophon.codec.window import codec as window_codec
from sophon.codec.window import jpeg
from sophon.codec.window.indexes import Indexes
from sophon.codec.window.names import Names
from sophon.codec.window.sidecar import find_sidecar, place_to_write, write_sidecar
from sophon.pipeline import Key, Pipeline, ops
from sophon.store import open_store
from tests.codec.window.support import needs_kernel, saved, scene
from tests.codec.window.twins import twin_of
from tests.store.datasets import write_files

pytestmark = needs_kernel

PIPELINE = Pipeline([ops.Decode(), ops.RandomResizedCrop(16, scale=(0.1, 0.3)), ops.ToTensor()])
CUTS = (Cut(0, "window"), Cut(2))  # a node that cuts, and one that crops, as a trainer does
SIZES = (0, 1, 7, 8, 9, 15, 16, 17, 31, 4080, 4095, 4096, 4097, 4112, 8191, 8192, 8193, 20_000)
SECRET = bytes(range(32))


def nh(block: bytes, key: bytes) -> int:
    """Return NH of one block, as the paper on UMAC defines it, with words of 64 bits."""
    block += bytes(-len(block) % 16)
    words = [int.from_bytes(block[at : at + 8], "little") for at in range(0, len(block), 8)]
    keys = [int.from_bytes(key[at : at + 8], "little") for at in range(0, len(block), 8)]
    sums = [(word + key) % 2**64 for word, key in zip(words, keys, strict=True)]
    return sum(one * other for one, other in zip(sums[::2], sums[1::2], strict=True)) % 2**128


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fill", ["random", "zeros", "ones"])
def test_a_name_is_made_by_nh_and_blake2b_of_all_bytes_and_the_length(size, fill):
    data = {"random": random.Random(size).randbytes(size), "zeros": bytes(size), "ones": b"\xff" * size}[fill]
    keys = hashlib.shake_256(b"sophon.names" + SECRET).digest(4096 + 64)
    text = b"".join(nh(data[at : at + 4096], keys[:4096]).to_bytes(16, "big") for at in range(0, size, 4096))
    assert jpeg.condensed(data, keys[:4096]) == text
    text += size.to_bytes(8, "little")
    expected = hashlib.blake2b(text, digest_size=8, key=keys[4096:], person=b"sophon.names").digest()
    for form in (data, bytearray(data), memoryview(b"x" + data)[1:]):  # the last is not aligned
        assert Names(SECRET).of(form) == int.from_bytes(expected, "little")


def test_every_byte_and_zeros_at_the_end_change_the_name():
    rng, names = random.Random(0), Names(SECRET)
    data = rng.randbytes(4200)
    known = {names.of(data), names.of(data + b"\0"), names.of(data[:-1]), names.of(data[:-1] + b"\0")}
    for at in range(0, len(data), 3):
        known.add(names.of(data[:at] + bytes((data[at] ^ 1 << rng.randrange(8),)) + data[at + 1 :]))
    assert len(known) == 4 + len(range(0, len(data), 3))


def test_another_secret_gives_other_names_and_a_key_has_one_size():
    assert Names(SECRET).of(b"x") != Names(SECRET[::-1]).of(b"x")
    for size in (0, 4095, 4097):
        with pytest.raises(ValueError, match="expected 4096"):
            jpeg.condensed(b"x", bytes(size))


@pytest.fixture(scope="module")
def twins():
    data = saved(scene(120, 90, seed=2), quality=60)
    twin = twin_of(data)
    assert len(twin) == len(data)
    assert jpeg.kernel.fingerprint(twin) == jpeg.kernel.fingerprint(data)
    return data, twin


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_a_file_made_to_look_like_another_does_not_change_the_pixels_of_that(cut, twins, monkeypatch):
    monkeypatch.setattr(window_codec, "INDEXES", Indexes())
    data, twin = twins
    for epoch in range(4):
        key = Key(0, epoch, 0)
        for file in (twin, data):  # the twin comes first
            done = finish_payload(PIPELINE, make_payload(PIPELINE, file, key, cut), key, cut)
            assert done.tobytes() == PIPELINE.run(file, key).tobytes()
    assert len(window_codec.INDEXES) == 2


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_nor_does_the_index_of_such_a_file_in_a_sidecar(cut, twins, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data, twin = twins
    folder = write_files(tmp_path / "theirs", {"0.jpg": twin})
    with open_store(folder) as store:
        write_sidecar(store, place_to_write(folder))
    indexes = Indexes()
    indexes.attach(find_sidecar(folder))
    monkeypatch.setattr(window_codec, "INDEXES", indexes)
    assert indexes.find(twin) is not None
    assert indexes.find(data) is None
    key = Key(0, 1, 0)
    done = finish_payload(PIPELINE, make_payload(PIPELINE, data, key, cut), key, cut)
    assert done.tobytes() == PIPELINE.run(data, key).tobytes()


def test_files_seen_and_files_of_a_sidecar_are_found_whichever_came_first(twins, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data, twin = twins
    folder = write_files(tmp_path / "photos", {"0.jpg": twin})
    with open_store(folder) as store:
        write_sidecar(store, place_to_write(folder))
    for seen_first in (True, False):
        indexes, sidecar = Indexes(), find_sidecar(folder)
        steps = [lambda: indexes.build(data, jpeg.parse(data)), lambda: indexes.attach(sidecar)]  # noqa: B023
        for step in steps if seen_first else steps[::-1]:
            step()
        assert indexes.find(data) == jpeg.build_index(data)
        assert indexes.find(twin) == jpeg.build_index(twin)


def test_a_table_has_a_secret_of_its_own(twins):
    assert Indexes()._names.of(twins[0]) != Indexes()._names.of(twins[0])
