"""Tar shards: which members make a sample, what comes along, and what is refused."""

import json
import os
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sophon.errors import ConfigError, StoreError
from sophon.store import TarStore, open_store
from tests.store.datasets import make, open_files, picture, write_tar


def _open(path: Path) -> TarStore:
    store = open_store(path)
    assert isinstance(store, TarStore)
    return store


def _rows(store: TarStore) -> list[tuple[str, bytes]]:
    return [(store.manifest.ids[i].as_py(), store.read(i)) for i in range(len(store))]


def test_a_sample_is_its_picture_its_label_and_its_texts(tmp_path):
    path = write_tar(
        tmp_path / "x.tar",
        [
            ("train/0001.jpg", b"one"),
            ("train/0001.cls", b"7\n"),
            ("train/0001.json", b'{"label": 9, "w": 4}'),
            ("train/0001.txt", "ein Täschchen".encode()),
            ("train/0002.PNG", b"two"),
            ("train/0002.cls", b"-3"),
        ],
    )
    store = _open(path)
    assert (store.name, store.kind) == ("x", "tar")
    assert _rows(store) == [("train/0001", b"one"), ("train/0002", b"two")]
    assert store.manifest.labels.tolist() == [7, -3]
    assert store.manifest.columns.to_pydict() == {
        "json": ['{"label": 9, "w": 4}', None],
        "txt": ["ein Täschchen", None],
    }


def test_the_key_ends_at_the_first_dot_of_the_base_name(tmp_path):
    names = ["a.b/c.jpg", "./d.jpg", "e/f.g.jpg", "x/.hidden.jpg", "._mac.jpg", "nodot", "__meta__/h.jpg", "i.left.jpg"]
    store = _open(write_tar(tmp_path / "x.tar", [(name, name.encode()) for name in names]))
    assert _rows(store) == [
        ("a.b/c", b"a.b/c.jpg"),
        ("d", b"./d.jpg"),
        ("e/f", b"e/f.g.jpg"),
        ("i", b"i.left.jpg"),
    ]


def test_labels_in_json_count_where_there_is_no_cls(tmp_path):
    facts = [{"label": 1}, {"cls": 2}, {"label": "dog", "cls": 3}, {"label": True}, {"label": 1 << 70}, [4], "x"]
    texts = [json.dumps(fact) for fact in facts] + ["{", "[" * 100_000]
    members = [m for i, text in enumerate(texts) for m in ((f"{i}.json", text.encode()), (f"{i}.jpg", b"x"))]
    with pytest.warns(UserWarning, match="6 of 9 samples in .* have no label and get -1"):
        store = _open(write_tar(tmp_path / "x.tar", members))
    assert store.manifest.labels.tolist() == [1, 2, 3, -1, -1, -1, -1, -1, -1]
    assert store.manifest.columns["json"].to_pylist() == texts


def test_without_any_label_there_are_none(tmp_path):
    store = _open(write_tar(tmp_path / "x.tar", [("1.jpg", b"1"), ("1.json", b"{}")]))
    assert store.manifest.labels is None


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_members_of_a_key_may_lie_anywhere_in_their_shard(data):
    count = data.draw(st.integers(1, 8))
    members = [
        m
        for i in range(count)
        for m in ((f"{i}.jpg", picture(i)), (f"{i}.cls", b"%d" % (i * i)), (f"{i}.txt", b"text %d" % i))
    ]
    members = data.draw(st.permutations(members))
    with tempfile.TemporaryDirectory() as folder:
        store = _open(write_tar(Path(folder) / "x.tar", members))
        order = [int(name.split(".")[0]) for name, _ in members if name.endswith("jpg")]
        assert store.manifest.ids.to_pylist() == [str(i) for i in order]
        assert [store.read(k) for k in range(count)] == [picture(i) for i in order]
        assert store.manifest.labels.tolist() == [i * i for i in order]
        assert store.manifest.columns["txt"].to_pylist() == [f"text {i}" for i in order]


def test_listing_in_chunks_changes_nothing(tmp_path, monkeypatch):
    make("tar", tmp_path)
    whole = TarStore.scan(tmp_path)
    monkeypatch.setattr("sophon.store.tar_samples._CHUNK", 2)
    seen = []
    store = open_store(tmp_path, on_progress=lambda done, total: seen.append((done, total)))
    assert store.manifest.fingerprint == whole.fingerprint
    assert [store.read(i) for i in range(10)] == [picture(i) for i in range(10)]
    assert seen[-1] == (10, None)
    assert seen == sorted(seen)


def test_keys_without_a_picture_are_left_out_and_counted(tmp_path):
    members = [("1.jpg", b"1"), ("1.cls", b"1"), ("2.cls", b"2"), ("2.json", b"{}"), ("3.txt", b"3")]
    with pytest.warns(UserWarning, match="2 samples in .* have no picture and are left out"):
        store = _open(write_tar(tmp_path / "x.tar", members))
    assert _rows(store) == [("1", b"1")]


def test_of_several_pictures_the_plainest_is_taken(tmp_path):
    members = [("1.mask.jpg", b"mask"), ("1.png", b"png"), ("1.jpg", b"first"), ("1.jpg", b"second")]
    with pytest.warns(UserWarning, match="3 pictures in .* are left out"):
        store = _open(write_tar(tmp_path / "x.tar", members))
    assert _rows(store) == [("1", b"first")]


def test_shards_are_in_order_of_their_names_and_keys_may_repeat(tmp_path):
    for shard in ("b-10.tar", "a-9.TAR", "b-9.tar", ".hidden.tar"):
        write_tar(tmp_path / shard, [("0.jpg", shard.encode()), ("1.jpg", b"1")])
    store = _open(tmp_path)
    assert store.manifest.ids.to_pylist() == ["0", "1"] * 3
    assert [store.read(i) for i in (0, 2, 4)] == [b"a-9.TAR", b"b-10.tar", b"b-9.tar"]


def test_names_longer_than_a_header_holds(tmp_path):
    for number, form in enumerate((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        name = "d" * 120 + "/" + "é" * 100
        store = _open(write_tar(tmp_path / f"{number}.tar", [(f"{name}.jpg", b"1"), (f"{name}.cls", b"5")], form))
        assert _rows(store) == [(name, b"1")]
        assert store.manifest.labels.tolist() == [5]


def test_names_that_are_not_utf8_are_shown_escaped(tmp_path):
    store = _open(write_tar(tmp_path / "x.tar", [(os.fsdecode(b"\xff/1.jpg"), b"1")]))
    assert _rows(store) == [("\\xff/1", b"1")]


@pytest.mark.parametrize("label", [b"dog", b"", b"1.5", b"9" * 30, b"1" * 100])
def test_a_label_that_is_no_integer_is_refused(tmp_path, label):
    with pytest.raises(StoreError, match=r"shard .*x\.tar: expected .* in '1\.cls', got "):
        open_store(write_tar(tmp_path / "x.tar", [("1.jpg", b"1"), ("1.cls", label)]))


def test_a_text_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("sophon.store.tar_samples._MAX_TEXT_BYTES", 10)
    with pytest.raises(StoreError, match=r"expected at most 10 bytes in '1\.txt', got 11"):
        open_store(write_tar(tmp_path / "x.tar", [("1.jpg", b"1"), ("1.txt", b"x" * 11)]))


def test_a_shard_without_an_end_mark_is_warned_of(tmp_path):
    path = write_tar(tmp_path / "x.tar", [("1.jpg", b"1")])
    path.write_bytes(path.read_bytes()[:1024])
    with pytest.warns(UserWarning, match=r"1 shards in .* have no end marker .* the first is x\.tar"):
        assert _rows(_open(path)) == [("1", b"1")]


def test_a_truncated_shard_is_named_with_a_remedy(tmp_path):
    make("tar", tmp_path)
    bad = tmp_path / "shard-1.tar"
    bad.write_bytes(bad.read_bytes()[:1000])
    with pytest.raises(StoreError, match=r"shard-1\.tar is damaged or cut short: .*Copy or pack the shard again"):
        open_store(tmp_path)


@pytest.mark.parametrize(("mode", "name"), [("w:gz", "gzip"), ("w:bz2", "bzip2"), ("w:xz", "xz")])
def test_a_compressed_shard_is_refused_by_the_name_of_its_compression(tmp_path, mode, name):
    with tarfile.open(tmp_path / "x.tar", mode) as archive:
        archive.addfile(tarfile.TarInfo("1.jpg"))
    with pytest.raises(StoreError, match=rf"x\.tar is not a tar archive. It is compressed with {name}"):
        open_store(tmp_path / "x.tar")


@pytest.mark.parametrize("content", [b"not a tar", b"x" * 2000, b""])
def test_what_is_no_tar_is_refused(tmp_path, content):
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(StoreError, match=r"x\.tar is not a tar archive\. Copy or pack"):
        open_store(tmp_path)


def test_a_tar_without_pictures_is_refused(tmp_path):
    write_tar(tmp_path / "x.tar", [("readme.md", b"")])
    with pytest.raises(StoreError, match="no picture found in the 1 shard of"):
        open_store(tmp_path)


def test_a_shard_that_changes_or_goes_is_named(tmp_path):
    make("tar", tmp_path)
    store = _open(tmp_path)
    shard = tmp_path / "shard-1.tar"
    content = shard.read_bytes()
    shard.unlink()
    with pytest.raises(StoreError, match=r"sample 6 \('006'\): its shard .*shard-1\.tar cannot be read: FileNotFound"):
        store.read(6)
    shard.write_bytes(content + b"\0" * 512)
    with pytest.raises(StoreError, match=r"sample 6 .*the shard was changed after it was listed"):
        store.read(6)
    assert store.read(0) == picture(0)


def test_reading_keeps_few_files_open(tmp_path):
    for shard in range(100):
        write_tar(tmp_path / f"{shard:03d}.tar", [("1.jpg", picture(shard))])
    before = open_files()
    store = _open(tmp_path)
    for _ in range(2):
        assert [store.read(i) for i in range(100)] == [picture(i) for i in range(100)]
        assert open_files() - before <= 64
    store.close()
    assert open_files() == before


def test_offsets_and_labels_are_arrays_and_not_lists(tmp_path):
    manifest = TarStore.scan(make("tar", tmp_path))
    assert isinstance(manifest.labels, np.ndarray)
    assert manifest.locations["offset"].to_numpy().dtype == np.int64


def test_a_pipe_in_the_place_of_a_shard_keeps_nobody_waiting(tmp_path):
    path = write_tar(tmp_path / "x.tar", [("a.jpg", b"a")])
    store = _open(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StoreError, match="the shard was changed after it was listed"):
        store.read(0)


def test_files_of_any_kind_are_samples_if_they_are_asked_for(tmp_path):
    members = [("0.npy", b"array"), ("0.cls", b"3"), ("1.bin", b"sound"), ("1.cls", b"4"), ("1.mask.npy", b"mask")]
    path = write_tar(tmp_path / "a.tar", members)
    with pytest.raises(StoreError, match=r"no picture found .*\?files=\.npy for files of another kind"):
        open_store(path)
    store = open_store(f"{path}?files=.npy")
    assert [store.read(i) for i in range(len(store))] == [b"array", b"mask"]
    with pytest.warns(UserWarning, match="1 pictures in .* are left out because their sample has another one"):
        every = open_store(f"{path}?files=any")
    assert [every.read(i) for i in range(2)] == [b"array", b"sound"]
    assert every.manifest.labels.tolist() == [3, 4]
    with pytest.raises(ConfigError, match="option 'label' does not apply to tar shards"):
        open_store(f"{path}?label=x")
