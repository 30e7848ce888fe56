"""Parquet files: rows, row groups, what comes along, and what is refused."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sophon.errors import StoreError
from sophon.store import ParquetStore, open_store, parquet_rows
from tests.store.datasets import NAMES, make, open_files, picture, settle, structs, write_parquet


def _all(store) -> list[bytes]:
    return [store.read(i) for i in range(len(store))]


def test_the_layout_of_hugging_face(tmp_path):
    columns = {
        "image": structs([picture(0), picture(1)], ["a.jpg", None]),
        "label": [1, 0],
        "caption": ["one", None],
        "boxes": [[[1.0, 2.0]], []],
    }
    store = open_store(write_parquet(tmp_path / "train.parquet", columns, NAMES))
    assert (store.kind, store.name) == ("parquet", "train")
    assert store.manifest.ids.to_pylist() == ["a.jpg", "train.parquet#1"]
    assert store.manifest.labels.tolist() == [1, 0]
    assert store.manifest.classes == ("cat", "dog", "owl")
    assert store.manifest.columns.to_pydict() == {"caption": ["one", None], "boxes": [[[1.0, 2.0]], []]}
    assert _all(store) == [picture(0), picture(1)]
    assert store.manifest.sizes.tolist() == [len(picture(0)), len(picture(1))]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_a_plain_column_of_bytes(tmp_path, kind):
    pictures = [picture(i) for i in range(8)]
    store = open_store(write_parquet(tmp_path / "x.parquet", {"jpg": pa.array(pictures, kind), "n.o": ["x"] * 8}))
    assert _all(store) == pictures
    assert store.manifest.labels is None
    assert store.manifest.columns.column_names == ["n.o"]


@given(
    groups=st.integers(1, 7),
    shards=st.lists(st.lists(st.none() | st.binary(max_size=40), max_size=12), min_size=1, max_size=3),
    struct=st.booleans(),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
@pytest.mark.filterwarnings("ignore:.*have no picture and are left out")
def test_any_rows_come_back_in_any_order(groups, shards, struct, order):
    expected = [data for shard in shards for data in shard if data is not None]
    with tempfile.TemporaryDirectory() as folder:
        for number, rows in enumerate(shards):
            image = structs(rows) if struct else pa.array(rows, pa.binary())
            labels = pa.array(range(len(rows)), pa.int64())
            write_parquet(Path(folder) / f"{number}.parquet", {"image": image, "label": labels}, rows=groups)
        if not expected:
            with pytest.raises(StoreError, match="no picture found"):
                open_store(folder)
            return
        store = open_store(folder)
        indexes = list(range(len(store)))
        order.shuffle(indexes)
        assert {i: store.read(i) for i in indexes} == dict(enumerate(expected))
        labels = [i for shard in shards for i, data in enumerate(shard) if data is not None]
        assert store.manifest.labels.tolist() == labels


def test_rows_without_a_picture_are_left_out_and_counted(tmp_path):
    image = pa.array([{"bytes": b"1"}, None, {"bytes": None}, {"bytes": b"4"}], pa.struct([("bytes", pa.binary())]))
    path = write_parquet(tmp_path / "x.parquet", {"image": image, "label": [1, 2, 3, None], "t": list("abcd")})
    with pytest.warns(UserWarning, match="have no") as warned:
        store = open_store(path)
    assert [str(w.message).replace(str(path), "PATH") for w in warned] == [
        "2 rows of PATH have no picture and are left out",
        "1 of 2 samples in PATH have no label and get -1",
    ]
    assert _all(store) == [b"1", b"4"]
    assert store.manifest.labels.tolist() == [1, -1]
    assert store.manifest.columns["t"].to_pylist() == ["a", "d"]
    assert store.manifest.ids.to_pylist() == ["x.parquet#0", "x.parquet#3"]


def test_pictures_that_are_only_paths_are_refused(tmp_path):
    path = write_parquet(tmp_path / "x.parquet", {"image": structs([None, None], ["a.jpg", "b.jpg"])})
    with pytest.raises(StoreError, match=r"no picture found in the 2 rows of .* embed the bytes"):
        open_store(path)


def test_progress_knows_the_number_of_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("sophon.store.parquet._STEP", 2)
    seen = []
    open_store(make("parquet", tmp_path), on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(2, 10), (3, 10), (5, 10), (6, 10), (8, 10), (9, 10), (10, 10)]


def test_the_cache_is_bounded_and_can_be_set(tmp_path):
    pictures = [bytes([i]) * 1000 for i in range(12)]
    write_parquet(tmp_path / "x.parquet", {"image": structs(pictures)}, rows=3)
    store = open_store(tmp_path)
    assert store.cache_bytes == 512_000_000
    for limit in (7000, 4000, 1000, 0, 1_000_000):
        store.cache_bytes = limit
        for _ in range(2):
            assert _all(store) == pictures
            assert store._cache.held_bytes <= limit
    assert store._cache.held_bytes >= 12_000
    store.close()
    assert store._cache.held_bytes == 0


def test_a_row_group_is_decoded_once_while_it_fits(tmp_path, monkeypatch):
    store = open_store(make("parquet", tmp_path))
    decoded = []
    decode = ParquetStore._decode
    monkeypatch.setattr(ParquetStore, "_decode", lambda self, *key: decoded.append(key) or decode(self, *key))
    for _ in range(3):
        assert _all(store) == [picture(i) for i in range(10)]
    assert decoded == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]  # shard, row group, column


def test_row_groups_larger_than_the_cache_are_warned_of(tmp_path, monkeypatch):
    monkeypatch.setattr("sophon.store.parquet.CACHE_BYTES", 50)
    write_parquet(tmp_path / "x.parquet", {"image": structs([b"x" * 40] * 2)})
    with pytest.warns(UserWarning, match=r"row groups of .* have up to 80 bytes, more than the cache of 50"):
        open_store(tmp_path)


def test_threads_read_the_same_and_leave_no_file_open(tmp_path):
    pictures = [bytes([i]) * 500 for i in range(60)]
    write_parquet(tmp_path / "x.parquet", {"image": structs(pictures)}, rows=5)
    store = open_store(tmp_path)
    store.cache_bytes = 8000
    before = open_files()
    indexes = np.random.default_rng(0).integers(0, 60, 600).tolist()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(store.read, indexes)) == [pictures[i] for i in indexes]
    assert open_files() == before


def test_shards_of_different_layouts_are_refused(tmp_path):
    write_parquet(tmp_path / "a.parquet", {"image": structs([b"1"]), "label": [1]})
    write_parquet(tmp_path / "b.parquet", {"image": structs([b"1"]), "class": [1]})
    with pytest.raises(StoreError, match=r"a\.parquet has pictures in 'image\.bytes' and labels in 'label', b\."):
        open_store(tmp_path)
    write_parquet(tmp_path / "a.parquet", {"image": structs([b"1"]), "x": ["text"]})
    write_parquet(tmp_path / "b.parquet", {"image": structs([b"1"]), "x": [[1.5]]})
    with pytest.raises(StoreError, match="columns of different types"):
        open_store(tmp_path)


def test_a_column_that_a_shard_lacks_is_null_there(tmp_path):
    for name, more in (("a", {}), ("b", {"x": ["1"], "y": [1.5]}), ("c", {"y": [2.5], "x": ["2"]})):
        write_parquet(tmp_path / f"{name}.parquet", {"image": structs([name.encode()])} | more)
    store = open_store(tmp_path)
    assert store.manifest.columns.to_pydict() == {"x": [None, "1", "2"], "y": [None, 1.5, 2.5]}
    assert _all(store) == [b"a", b"b", b"c"]


def test_columns_of_wider_types_and_of_categories_are_joined_and_kept(tmp_path):
    data, cache = tmp_path / "data", tmp_path / "cache"
    for name, label, value in (("a", pa.int8(), "x"), ("b", pa.int64(), "y")):
        columns = {"image": structs([b"1"]), "label": pa.array([1], label)}
        write_parquet(data / f"{name}.parquet", columns | {"kind": pa.array([value]).dictionary_encode()})
    settle(data)
    for _ in range(2):
        store = open_store(data, cache_dir=cache)
        assert len(list(cache.rglob("*.arrow"))) == 1
        assert store.manifest.labels.tolist() == [1, 1]
        assert store.manifest.columns["kind"].to_pylist() == ["x", "y"]


def test_labels_that_do_not_fit_are_refused(tmp_path):
    path = write_parquet(
        tmp_path / "x.parquet", {"image": structs([b"1"]), "label": pa.array([2**64 - 1], pa.uint64())}
    )
    with pytest.raises(StoreError, match=r"shard .*x\.parquet is not a readable Parquet file"):
        open_store(path)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 10, b"text" * 100])
def test_what_is_no_parquet_is_named(tmp_path, content):
    (tmp_path / "x.parquet").write_bytes(content)
    with pytest.raises(StoreError, match=r"shard .*x\.parquet is not a readable Parquet file: .*Copy it again"):
        open_store(tmp_path)


def test_a_shard_that_changes_or_goes_is_named(tmp_path):
    make("parquet", tmp_path)
    store = open_store(tmp_path)
    shard = tmp_path / "shard-1.parquet"
    content = shard.read_bytes()
    shard.unlink()
    with pytest.raises(StoreError, match=r"sample 7 .*shard-1\.parquet cannot be read: FileNotFoundError"):
        store.read(7)
    shard.write_bytes(content + b"x")
    with pytest.raises(StoreError, match=r"sample 7 .*the shard was changed after it was listed"):
        store.read(7)
    assert store.read(0) == picture(0)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_bytes_give_typed_errors_only(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.parquet"
        table = pa.table({"image": structs([picture(i) for i in range(9)]), "label": range(9), "t": list("abcdefghi")})
        codec = data.draw(st.sampled_from(["none", "snappy", "zstd"]))
        pq.write_table(table, path, row_group_size=4, compression=codec, write_page_checksum=True)
        content = bytearray(path.read_bytes())
        if data.draw(st.integers(0, 3)) == 0:
            del content[data.draw(st.integers(0, len(content) - 1)) :]
        for at in data.draw(st.lists(st.integers(0, max(0, len(content) - 1)), max_size=4)):
            if content:
                content[at] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
        try:
            store = open_store(path)
            for index in range(len(store)):
                store.read(index)
        except (StoreError, UserWarning):
            pass


@pytest.mark.parametrize("cache_bytes", [512_000_000, 0])
def test_rows_that_are_not_selected_may_have_any_size(tmp_path, cache_bytes):
    pictures = [picture(row) for row in range(60)]
    path = write_parquet(tmp_path / "x.parquet", {"image": pictures, "label": [row % 5 for row in range(60)]}, rows=20)
    with open_store(f"{path}?where=label = 3") as store:
        store.cache_bytes = cache_bytes
        assert _all(store) == pictures[3::5]


def test_selected_rows_come_back_from_batches_of_any_size(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_rows, "_BATCH_BYTES", 1000)
    pictures = [bytes([row]) * (100 + row) for row in range(60)]
    path = write_parquet(tmp_path / "x.parquet", {"image": pictures}, rows=30)
    chosen = [59, 1, 0, 31, 29]
    with ParquetStore(path, "x", ParquetStore.scan(path).select(np.array(chosen))) as store:
        assert _all(store) == [pictures[row] for row in chosen]
