"""Manifests on disk: when they are used again, and when not."""

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sophon.errors import ConfigError, StoreError
from sophon.store import STORES, open_store
from sophon.store.manifest import Manifest
from tests.store.datasets import LONG_AGO_NS, SINGLE, make, picture, settle, write_files, write_tar


@pytest.fixture
def listings(monkeypatch):
    """How often a data set was listed."""
    seen = []
    for cls in STORES.values():
        scan = cls.scan.__func__
        replaced = classmethod(
            lambda cls, path, report=None, scan=scan: seen.append(cls.kind) or scan(cls, path, report)
        )
        monkeypatch.setattr(cls, "scan", replaced)
    return seen


@pytest.mark.parametrize("kind", SINGLE)
def test_a_data_set_is_listed_once(tmp_path, listings, kind):
    data = settle(make(kind, tmp_path / "data"))
    one = open_store(data, cache_dir=tmp_path / "cache")
    two = open_store(data, cache_dir=tmp_path / "cache")
    assert listings == [kind]
    assert one.manifest.fingerprint == two.manifest.fingerprint
    assert [two.read(i) for i in range(10)] == [picture(i) for i in range(10)]
    assert two.manifest.classes == one.manifest.classes
    open_store(data, cache_dir=tmp_path / "other")
    assert listings == [kind, kind]


@pytest.mark.parametrize("kind", SINGLE)
def test_a_copy_of_a_data_set_has_the_same_fingerprint(tmp_path, kind):
    prints = {open_store(make(kind, tmp_path / place)).manifest.fingerprint for place in ("one", "two")}
    assert len(prints) == 1


def test_all_kinds_agree_on_sizes_and_labels(tmp_path):
    stores = [open_store(make(kind, tmp_path / kind)) for kind in SINGLE]
    assert len({tuple(store.manifest.sizes.tolist()) for store in stores}) == 1
    assert len({tuple(store.manifest.labels.tolist()) for store in stores}) == 1


def _touch(path: Path) -> None:
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS + 1))


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "b/new.jpg").write_bytes(b"new"),
        lambda root: (root / "b/004.jpg").unlink(),
        lambda root: (root / "b/004.jpg").rename(root / "b/x.jpg"),
        lambda root: write_files(root, {"d/1.jpg": b"new class"}),
        lambda root: write_files(root, {"c/deep/1.jpg": b"deeper"}),
        lambda root: _touch(root / "a"),
    ],
)
def test_a_folder_that_changed_is_listed_again(tmp_path, listings, change):
    data = settle(make("folder", tmp_path / "data"))
    open_store(data)
    change(data)
    fresh = STORES["folder"].scan(data)
    assert open_store(data).manifest.fingerprint == fresh.fingerprint
    assert len(listings) == 3


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_shards_that_changed_are_listed_again(tmp_path, listings, kind):
    data = settle(make(kind, tmp_path / "data"))
    first, second, third, ninth = (data / f"shard-{number}.{kind}" for number in (0, 1, 2, 9))
    changes = [
        lambda: _touch(second),
        lambda: second.rename(third),
        third.unlink,
        lambda: ninth.write_bytes(first.read_bytes()),
    ]
    open_store(data)
    for number, change in enumerate(changes, 2):
        change()
        open_store(data)
        assert len(listings) == number
    (data / "notes.txt").write_text("not a shard")
    _touch(ninth)
    open_store(data)
    open_store(data)
    assert len(listings) == 6


def test_what_was_changed_a_moment_ago_is_not_kept(tmp_path, listings):
    # Another change within the same tick of the file system's clock would not be seen.
    data = make("folder", tmp_path / "data")
    open_store(data)
    open_store(data)
    assert len(listings) == 2
    for folder in (data, data / "a", data / "b", data / "c"):
        os.utime(folder, (time.time() - 60,) * 2)
    open_store(data)
    open_store(data)
    assert len(listings) == 3


def test_a_damaged_cache_is_replaced(tmp_path, listings):
    data = settle(make("folder", tmp_path / "data"))
    open_store(data, cache_dir=tmp_path / "cache")
    (file,) = (tmp_path / "cache").rglob("*.arrow")
    whole = file.read_bytes()
    for content in (b"", whole[:-100], b"x" * 1000):
        file.write_bytes(content)
        assert len(open_store(data, cache_dir=tmp_path / "cache")) == 10
        assert file.read_bytes() == whole
    assert len(listings) == 4


def test_a_cached_data_set_warns_again(tmp_path, listings):
    data = write_tar(tmp_path / "data/x.tar", [("1.jpg", b"1"), ("2.cls", b"2")])
    settle(data.parent)
    for _ in range(2):
        with pytest.warns(UserWarning, match="1 samples in .* have no picture"):
            open_store(data)
    assert listings == ["tar"]


def test_a_path_and_a_link_to_it_share_a_manifest(tmp_path, listings):
    data = settle(make("folder", tmp_path / "data"))
    (tmp_path / "link").symlink_to(data)
    assert open_store(data).name == "data"
    assert open_store(tmp_path / "link").name == "link"
    assert len(listings) == 1


def test_a_link_that_points_elsewhere_now_is_another_data_set(tmp_path):
    for name in ("one", "two"):
        settle(write_files(tmp_path / name, {f"a/{name}.jpg": b"x"}))
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "one")
    assert open_store(link).manifest.ids.to_pylist() == ["a/one.jpg"]
    link.unlink()
    link.symlink_to(tmp_path / "two")
    assert open_store(link).manifest.ids.to_pylist() == ["a/two.jpg"]


def test_the_default_is_the_users_cache_folder(tmp_path, monkeypatch):
    data = settle(make("folder", tmp_path / "data"))
    for variables, folder in (
        ({"XDG_CACHE_HOME": str(tmp_path / "xdg"), "HOME": str(tmp_path / "h1")}, tmp_path / "xdg/sophon"),
        ({"XDG_CACHE_HOME": "relative", "HOME": str(tmp_path / "h2")}, tmp_path / "h2/.cache/sophon"),
        ({"XDG_CACHE_HOME": "", "HOME": str(tmp_path / "h3")}, tmp_path / "h3/.cache/sophon"),
    ):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        open_store(data)
        assert len(list(folder.rglob("*.arrow"))) == 1


def test_a_default_that_cannot_be_written_to_turns_the_cache_off(tmp_path, monkeypatch, listings):
    data = settle(make("folder", tmp_path / "data"))
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    open_store(data)
    open_store(data)
    assert len(listings) == 2
    with pytest.raises(ConfigError, match=r"cache folder .*file cannot be written to; choose another one"):
        open_store(data, cache_dir=tmp_path / "file")


def _forge(folder, change):
    (file,) = (folder / "manifests").glob("*.arrow")
    manifest = Manifest.load(file)
    replace(manifest, **change(manifest)).save(file)  # with a fingerprint that is right


@pytest.mark.parametrize("name", ["../secret.jpg", "{root}/secret.jpg", "cat/../../secret.jpg", ".."])
def test_a_forged_manifest_leads_nowhere_outside_of_the_data_set(tmp_path, listings, name):
    secret = tmp_path / "secret.jpg"
    secret.write_bytes(picture(3))
    data = settle(make("folder", tmp_path / "data"))
    open_store(data, cache_dir=tmp_path / "cache")
    ids = [name.format(root=tmp_path)]

    def change(manifest):
        sizes = np.concatenate([[secret.stat().st_size], manifest.sizes[1:]])
        return {"ids": pa.array([*ids, *manifest.ids.to_pylist()[1:]], pa.large_string()), "sizes": sizes}

    _forge(tmp_path / "cache", change)
    again = open_store(data, cache_dir=tmp_path / "cache")
    assert listings == ["folder", "folder"]
    assert [again.read(i) for i in range(10)] == [picture(i) for i in range(10)]


def test_a_store_is_not_made_of_a_manifest_that_leads_outside(tmp_path):
    store = open_store(settle(make("folder", tmp_path / "data")))
    forged = replace(store.manifest, ids=pa.array(["../x"] * len(store), pa.large_string()))
    with pytest.raises(StoreError, match=r"'\.\./x', which is outside the data set"):
        store.holding(forged)


@pytest.mark.parametrize("inner", ["", "manifests"])
def test_a_cache_folder_that_others_can_write_to_is_not_used(tmp_path, inner):
    data = settle(make("folder", tmp_path / "data"))
    open_store(data, cache_dir=tmp_path / "cache")
    (tmp_path / "cache" / inner).chmod(0o777)
    with pytest.raises(ConfigError, match="other users can write to"):
        open_store(data, cache_dir=tmp_path / "cache")


def test_a_default_folder_that_others_can_write_to_is_not_used_and_named(tmp_path, monkeypatch, listings):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    data = settle(make("folder", tmp_path / "data"))
    open_store(data)
    (tmp_path / "home" / "sophon").chmod(0o777)
    with pytest.warns(UserWarning, match="the cache folder is not used: other users can write to"):
        open_store(data)
    assert listings == ["folder", "folder"]


@pytest.mark.parametrize("kind", ["folder", "listing"])
def test_another_version_with_the_same_times_is_listed_again(tmp_path, listings, kind):
    """Archives, copies and images of containers bring their times along."""
    data = settle(make(kind, tmp_path / "data"))
    before = open_store(data)
    tmp_path.joinpath("data").rename(tmp_path / "old")
    settle(make(kind, tmp_path / "data"))
    assert open_store(data).manifest.fingerprint == before.manifest.fingerprint
    assert listings == [kind, kind]
