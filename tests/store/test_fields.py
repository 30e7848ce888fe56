"""Samples of several fields, in tar shards: against Python's own `tarfile`."""

import io
import pickle
import tarfile

import numpy as np
import pytest

from sophon.bundle import unpack
from sophon.errors import ConfigError, StoreError
from sophon.store import open_store
from sophon.store.fields import Field
from sophon.store.manifest import Manifest


def write_shard(path, members):
    with tarfile.open(path, "w") as shard:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            shard.addfile(member, io.BytesIO(data))
    return path


def read_shard(path):
    """Return {key: {ending: bytes}} as tarfile reads it."""
    found = {}
    with tarfile.open(path) as shard:
        for member in shard:
            key, _, ending = member.name.partition(".")
            found.setdefault(key, {})[ending] = shard.extractfile(member).read()
    return found


@pytest.fixture
def shards(tmp_path):
    rng = np.random.default_rng(0)
    for shard in range(2):
        members = []
        for i in range(7):
            key = f"{shard}{i}"
            endings = ["jpg", "seg.png", "npy", "cls"]
            rng.shuffle(endings)
            members += [(f"{key}.{e}", b"3" if e == "cls" else rng.bytes(int(rng.integers(1, 900)))) for e in endings]
        write_shard(tmp_path / f"train-{shard}.tar", members)
    return tmp_path


@pytest.mark.parametrize("first", ["image", "jpg"])
def test_a_sample_is_a_bundle_of_its_members(shards, first):
    expected = read_shard(shards / "train-0.tar") | read_shard(shards / "train-1.tar")
    with open_store(f"{shards}?fields={first},seg.png,npy") as store:
        assert store.manifest.fields == (Field(first, "picture"), Field("seg.png", "picture"), Field("npy", "bytes"))
        assert store.manifest.labels.tolist() == [3] * 14
        ids = store.manifest.ids.to_pylist()
        assert sorted(ids) == sorted(expected)
        space = bytearray(int(store.manifest.sizes.sum()))
        ends, failed = store.read_run(range(len(store)), memoryview(space))
        for index, key in enumerate(ids):
            data = store.read(index)
            assert len(data) == store.manifest.sizes[index]
            assert data == space[ends[index - 1] if index else 0 : ends[index]]
            parts = [bytes(part) for part in unpack(data, 3)]
            assert parts == [expected[key][ending] for ending in ("jpg", "seg.png", "npy")]
        assert not failed


@pytest.mark.parametrize(("names", "endings"), [((), ["jpg"]), (("npy",), ["jpg", "npy"]), (("image",), ["jpg"])])
def test_only_the_fields_that_are_asked_for_are_read(shards, names, endings):
    expected = read_shard(shards / "train-0.tar") | read_shard(shards / "train-1.tar")
    with open_store(f"{shards}?fields=image,seg.png,npy") as whole:
        store = pickle.loads(pickle.dumps(whole.narrowed(names)))
        for index, key in enumerate(store.manifest.ids.to_pylist()):
            parts = [bytes(part) for part in unpack(store.read(index), len(endings))]
            assert parts == [expected[key][ending] for ending in endings]
        assert whole.narrowed(("seg.png", "npy")).manifest.fingerprint == whole.manifest.fingerprint
        with pytest.raises(ConfigError, match=r"no field 'depth'; choose from image, seg\.png, npy"):
            whole.narrowed(("depth",))


def test_samples_that_lack_a_field_are_left_out_and_told_of(tmp_path):
    members = [("a.jpg", b"1"), ("a.seg.png", b"2"), ("b.jpg", b"3"), ("c.seg.png", b"4"), ("d.seg.png", b"5")]
    path = write_shard(tmp_path / "x.tar", [*members, ("d.jpg", b"6")])
    with pytest.warns(UserWarning, match="left out") as told:
        store = open_store(f"{path}?fields=jpg,seg.png")
    assert sorted(str(one.message).partition(" in ")[0] for one in told) == ["1 samples", "1 samples"]
    assert [str(one.message).rpartition(".tar ")[2] for one in told] == [
        "have no picture and are left out",
        "lack one of the fields and are left out",
    ]
    assert store.manifest.ids.to_pylist() == ["a", "d"]
    assert [bytes(part) for part in unpack(store.read(1), 2)] == [b"6", b"5"]
    with pytest.raises(StoreError, match=r"no sample with all of jpg,depth\.png found"):
        open_store(f"{path}?fields=jpg,depth.png")


def test_a_manifest_keeps_its_fields(shards, tmp_path):
    store = open_store(f"{shards}?fields=image,npy")
    store.manifest.save(tmp_path / "kept")
    kept = Manifest.load(tmp_path / "kept")
    assert (kept.fields, kept.fingerprint) == (store.manifest.fields, store.manifest.fingerprint)
    assert kept.select(np.array([3, 1])).fields == kept.fields
    again = open_store(f"{shards}?fields=image,npy")  # from the cache
    assert again.read(5) == store.read(5)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("fields=image,seg.png,seg.png", "distinct member endings"),
        ("fields=jpg,image", "comes first"),
        ("fields=image, ", "distinct member endings"),
        ("fields=image,../x", "distinct member endings"),
        ("files=.npy&fields=image,npy", "give only one of them"),
    ],
)
def test_odd_fields_are_refused(shards, option, message):
    with pytest.raises(ConfigError, match=message):
        open_store(f"{shards}?{option}")


def test_single_files_have_no_further_field(tmp_path):
    path = write_shard(tmp_path / "x.tar", [("a.jpg", b"1")])
    store = open_store(path)
    assert store.narrowed(()) is store
    with pytest.raises(ConfigError, match="no field 'txt'; its samples are single files"):
        store.narrowed(("txt",))
