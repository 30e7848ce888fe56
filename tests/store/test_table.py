"""Which store a path is, and what is said when it is none."""

import os

import pytest

from sophon.errors import ConfigError, StoreError
from sophon.store import STORES, Store, open_store
from tests.store.datasets import SINGLE, make, picture, structs, write_files, write_parquet, write_tar


@pytest.mark.parametrize("kind", SINGLE)
def test_every_kind_is_recognised(tmp_path, kind):
    path = make(kind, tmp_path / "train")
    store = open_store(path)
    assert type(store) is STORES[kind]
    assert (store.kind, store.name, len(store)) == (kind, "train", 10)
    assert open_store(str(path), "other").name == "other"
    assert repr(store).endswith(f"{path}', 'train', 10 samples)")


def test_the_table_names_every_store_by_its_kind():
    assert {kind: cls.kind for kind, cls in STORES.items()} == {kind: kind for kind in STORES}
    assert all(issubclass(cls, Store) for cls in STORES.values())


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_one_file_and_a_pattern_are_data_sets_too(tmp_path, kind):
    make(kind, tmp_path / "data")
    one = open_store(tmp_path / f"data/shard-1.{kind}")
    assert (one.name, [one.read(i) for i in range(4)]) == ("shard-1", [picture(i) for i in range(6, 10)])
    some = open_store(tmp_path / f"data/shard-*.{kind}")
    assert (some.name, [some.read(i) for i in range(10)]) == ("data", [picture(i) for i in range(10)])


def test_folders_beside_shards_are_left_alone(tmp_path):
    make("tar", tmp_path)
    write_files(tmp_path, {"notes/1.jpg": b"1", "README.md": b"2"})
    assert open_store(tmp_path).kind == "tar"


def test_nothing_at_the_path(tmp_path):
    for path in (tmp_path / "no", tmp_path / "no.tar", tmp_path / "no/*.tar/x"):
        with pytest.raises(ConfigError, match=r"there is nothing at .*; check the spelling"):
            open_store(path)
    for path in (tmp_path / "no-*.tar", tmp_path / "no/*.parquet"):
        with pytest.raises(ConfigError, match=r"no file matches .*; check the pattern"):
            open_store(path)


def test_a_path_that_cannot_be_looked_at_and_a_link_to_itself(tmp_path):
    with pytest.raises(StoreError, match=r"cannot access .*: OSError: File name too long\. Check the path"):
        open_store(tmp_path / ("x" * 5000 + ".tar"))
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match="there is nothing at"):
        open_store(tmp_path / "loop")


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(ConfigError, match="expected the path of a data set"):
        open_store(path)


@pytest.mark.parametrize("name", ["photo.jpg", "archive.zip", "data.tar.gz", "no-suffix"])
def test_a_file_that_is_no_data_set(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ConfigError, match="is not a data set; expected a folder of pictures"):
        open_store(tmp_path / name)


def test_an_empty_folder_and_one_without_pictures(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match=r"empty is empty; expected pictures, class folders, or \.tar"):
        open_store(tmp_path / "empty")
    write_files(tmp_path / "texts", {"a/1.txt": b"", "b/c/2.txt": b"", "3.txt": b""})
    with pytest.raises(StoreError, match=r"no picture found in .*texts and 3 folders below it; put pictures there"):
        open_store(tmp_path / "texts")


def test_several_kinds_in_one_folder_are_refused(tmp_path):
    make("tar", tmp_path)
    make("parquet", tmp_path)
    with pytest.raises(ConfigError, match=r"several kinds of data at once \(parquet, tar\); open one file"):
        open_store(tmp_path)
    assert open_store(tmp_path / "*.tar").kind == "tar"


def test_several_splits_in_one_folder_are_refused(tmp_path):
    for split, number in (("train", 0), ("train", 1), ("test", 0)):
        write_parquet(tmp_path / f"{split}-0000{number}-of-00002.parquet", {"image": structs([split.encode()])})
    with pytest.raises(ConfigError, match=r"holds the splits test, train, expected one; open .*test-\*\.parquet"):
        open_store(tmp_path)
    train = open_store(tmp_path / "train-*.parquet")
    assert [train.read(i) for i in range(len(train))] == [b"train"] * 2
    assert len(open_store(tmp_path / "*.parquet")) == 3


@pytest.mark.parametrize("name", ["", "a/b", "a\nb"])
def test_a_name_that_cannot_be_in_an_address_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="expected a data set name"):
        open_store(make("folder", tmp_path), name)


def test_relative_paths_and_the_home_folder(tmp_path, monkeypatch):
    make("folder", tmp_path / "data")
    write_tar(tmp_path / "data/a/x.tar", [("1.jpg", b"1")])
    monkeypatch.chdir(tmp_path / "data")
    monkeypatch.setenv("HOME", str(tmp_path))
    stores = [open_store(path) for path in (".", "~/data", "../data")]
    assert [store.name for store in stores] == ["data"] * 3
    assert open_store("a/..").name == "data"
    monkeypatch.chdir("/")
    assert {store.read(0) for store in stores} == {picture(0)}


def test_a_folder_that_looks_like_a_pattern_or_a_shard_is_a_folder(tmp_path):
    for name in ("a[1]", "b*", "c.tar"):
        assert open_store(make("folder", tmp_path / name)).name == name
        assert len(open_store(make("tar", tmp_path / "t" / name))) == 10


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list everything")
def test_a_folder_that_may_not_be_listed(tmp_path):
    make("folder", tmp_path / "data")
    (tmp_path / "data").chmod(0)
    try:
        with pytest.raises(StoreError, match=r"cannot list .*data: PermissionError"):
            open_store(tmp_path / "data")
    finally:
        (tmp_path / "data").chmod(0o700)
