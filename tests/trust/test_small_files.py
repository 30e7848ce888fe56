"""Files of a few kilobytes that stand for gigabytes: read in bounded memory, or refused with a typed error."""

import gzip
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from sophon.bundle import unpack
from sophon.errors import ArtifactError, StoreError
from sophon.store import ParquetStore, open_store, parquet_pages, parquet_rows
from sophon.store.annotations import coco
from sophon.store.bucket.exchange import read_manifest
from sophon.store.bucket.inventory import read_inventory
from sophon.store.parquet_pages import chunk_of
from sophon.store.parquet_rows import open_parquet
from sophon.store.row_groups import RowGroupCache

_POOLS: list[pa.MemoryPool] = []  # kept: memory of a pool may outlive the test, in a traceback
MOST_BYTES = 48 << 20
LARGE = 1 << 20  # of one value
ROWS = 160


@pytest.fixture
def watched():
    """Return a function that begins to watch Arrow's memory, and returns one that says how much there has been."""
    before = pa.default_memory_pool()

    def begin():
        pool = pa.proxy_memory_pool(before)
        _POOLS.append(pool)
        pa.set_memory_pool(pool)
        return pool.max_memory

    yield begin
    pa.set_memory_pool(before)


def _repeated(path, value, rows, name="image", **others):
    """Write a file in which all rows repeat one value, of which it holds only one."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([value]))
    table = pa.table({name: column, **others})
    options = {"dictionary_pagesize_limit": 1 << 30, "data_page_size": 1 << 30, "row_group_size": rows}
    pq.write_table(table, path, compression="zstd", store_schema=False, **options)
    return path


def _value():
    """Return bytes that shrink to a thousandth, as a blank bitmap does."""
    return (b"\0" * 65_000 + np.random.default_rng(3).bytes(100)) * (LARGE // 65_100)


def test_repeated_pictures_are_listed_and_read_in_bounded_memory(tmp_path, watched, monkeypatch):
    monkeypatch.setattr(parquet_rows, "_BATCH_BYTES", 8 << 20)
    value = _value()
    path = _repeated(tmp_path / "x.parquet", value, ROWS)
    assert path.stat().st_size < 1 << 20
    peak = watched()
    manifest = ParquetStore.scan(path)
    assert manifest.sizes.tolist() == [len(value)] * ROWS
    with ParquetStore(path, "x", manifest, cache_bytes=24 << 20) as store, ThreadPoolExecutor(4) as pool:
        assert all(data == value for data in pool.map(store.read, [1, 7, 0, 8]))
    assert peak() < MOST_BYTES


def test_row_groups_wait_until_others_are_decoded_if_they_would_exceed_the_cache_together():
    cache, order = RowGroupCache(100), []

    def second():
        cache.get((2,), lambda: order.append("second") or pa.chunked_array([[b"2"]]), 60)

    thread = threading.Thread(target=second)

    def first():
        thread.start()
        cache.get((3,), lambda: pa.chunked_array([[b"3"]]), 40)  # there is room for this one
        thread.join(0.1)  # without the bound it would have ended
        order.append("first")
        return pa.chunked_array([[b"1"]])

    assert cache.get((1,), first, 60)[0].as_py() == b"1"
    thread.join()
    assert order == ["first", "second"]
    assert cache.get((4,), lambda: pa.chunked_array([[b"4"]]), 1000)[0].as_py() == b"4"  # alone, any may be decoded


def test_a_page_that_expands_beyond_what_files_do_is_refused(tmp_path, watched):
    path = _repeated(tmp_path / "x.parquet", bytes(65 << 20), 2)
    peak = watched()
    with pytest.raises(StoreError, match=r"become .* more than 2,000 times as much"):
        open_store(path)
    assert peak() < 1 << 20


@pytest.mark.parametrize("is_photos", [True, False])
def test_a_page_larger_than_a_sample_is_read_if_it_holds_photos(tmp_path, monkeypatch, is_photos):
    monkeypatch.setattr(parquet_pages, "MOST_PAGE_BYTES", 1 << 20)
    photos = [np.random.default_rng(seed).bytes(1 << 15) if is_photos else bytes(1 << 15) for seed in range(64)]
    table = pa.table({"image": photos})  # all of it becomes one page of 2 MiB
    pq.write_table(table, tmp_path / "x.parquet", compression="zstd", use_dictionary=False, data_page_size=1 << 30)
    if is_photos:
        store = open_store(tmp_path / "x.parquet")
        assert [store.read(sample) for sample in range(64)] == photos
    else:
        with pytest.raises(StoreError, match=r"has 2\.097 MB, more than 1\.049 MB; write the file again"):
            open_store(tmp_path / "x.parquet")


def test_a_chunk_of_very_many_pages_is_refused_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_pages, "_MOST_PAGES", 10)
    pq.write_table(pa.table({"image": [b"x"] * 100}), tmp_path / "x.parquet", data_page_size=1, write_batch_size=1)
    with pytest.raises(StoreError, match="more than 10 pages in a row group; write the file again with larger pages"):
        open_store(tmp_path / "x.parquet")


def test_more_rows_than_bytes_are_refused(tmp_path):
    table = pa.table({"image": pa.nulls(1_000_000, pa.binary())})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=1_000_000, store_schema=False)
    with pytest.raises(StoreError, match="more rows than bytes"):
        open_store(tmp_path / "x.parquet")


@pytest.mark.parametrize("lists", [False, True], ids=["texts", "lists of texts"])
def test_columns_that_repeat_large_texts_are_refused(tmp_path, watched, lists, monkeypatch):
    monkeypatch.setattr(parquet_rows, "most_held", lambda size: (16 << 20) + 64 * size)
    monkeypatch.setattr(parquet_rows, "_BATCH_BYTES", 8 << 20)
    rows = 200
    text = "x" * (1 << 18)
    values = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))
    more = pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), values) if lists else values
    names = pa.array([f"{row}.jpg" for row in range(rows)])
    pq.write_table(
        pa.table({"file_name": names, "more": more}),
        tmp_path / "metadata.parquet",
        **{"compression": "zstd", "store_schema": False, "dictionary_pagesize_limit": 1 << 30},
    )
    peak = watched()
    with pytest.raises(StoreError, match=r"its columns take more than 1.* MB in memory"):
        open_store(tmp_path / "metadata.parquet")
    with pytest.raises(ArtifactError, match=r"its columns take more than 1.* MB in memory"):
        read_manifest(str(tmp_path / "metadata.parquet"))
    assert peak() < 36 << 20


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_lists_of_a_few_texts_are_read_whatever_compresses_them(tmp_path, codec, monkeypatch):
    monkeypatch.setattr(parquet_rows, "most_held", lambda size: (4 << 20) + 64 * size)
    monkeypatch.setattr(parquet_rows, "_BATCH_BYTES", 1 << 20)
    tags = [[f"tag {(row * step) % 991}" for step in (1, 3, 7)] for row in range(5_000)]
    table = pa.table({"tags": tags})
    pq.write_table(table, tmp_path / "x.parquet", compression=codec)
    with open_parquet(tmp_path / "x.parquet") as rows:
        assert rows.table().equals(table)


@pytest.mark.parametrize("form", ["lists", "structs", "maps"])
def test_one_long_text_among_many_short_ones_in_lists_does_no_harm(tmp_path, form, monkeypatch):
    monkeypatch.setattr(parquet_rows, "most_held", lambda size: (2 << 20) + 64 * size)
    monkeypatch.setattr(parquet_rows, "_BATCH_BYTES", 1 << 20)
    texts = ["x" * 5000 if row == 77 else f"text {row % 300}" for row in range(12_000)]
    rows = {
        "lists": lambda text: [[text], [], [text]],
        "structs": lambda text: [{"a": {"b": [text, None]}, "c": 1}, None],
        "maps": lambda text: [("key", text), (text, None)],
    }[form]
    kind = pa.map_(pa.string(), pa.string()) if form == "maps" else None
    column = pa.array([None if row % 50 == 3 else rows(text) for row, text in enumerate(texts)], kind)
    table = pa.table({"column": column})
    pq.write_table(table, tmp_path / "x.parquet", compression="zstd", data_page_version="2.0")
    with open_parquet(tmp_path / "x.parquet") as opened:
        assert opened.table().equals(table)


def test_long_lists_of_texts_that_the_file_holds_once_for_each_row_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_rows, "_BATCH_BYTES", 1 << 20)
    texts = [[f"{row} asks " * 100, f"{row} answers " * 200] for row in range(2_000)]
    table = pa.table({"conversations": texts})
    pq.write_table(table, tmp_path / "x.parquet", compression="none", dictionary_pagesize_limit=1)
    with open_parquet(tmp_path / "x.parquet") as rows:
        assert rows.table().equals(table)


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "gzip", "brotli", "lz4"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_what_pages_say_is_what_arrow_makes_of_them(tmp_path, codec, version):
    texts = [None if row % 7 == 0 else f"text {row % 1000} " * (row % 13) for row in range(6_000)]
    lists = [[row] * (row % 4) for row in range(6_000)]
    path = tmp_path / "x.parquet"
    table = pa.table({"texts": texts, "lists": lists})
    pq.write_table(table, path, compression=codec, data_page_version=version, data_page_size=5000, row_group_size=2500)
    with open_parquet(path) as rows:
        assert rows.table().equals(table)
        for group in range(rows.file.num_row_groups):
            footer = rows.file.metadata.row_group(group)
            found = table.slice(group * 2500, 2500)
            for number in range(2):
                chunk = chunk_of(footer.column(number), rows._bytes)
                assert chunk.values == footer.column(number).num_values
                assert chunk.dictionary + chunk.plain <= footer.column(number).total_uncompressed_size
            longest = max(len(text) for text in found["texts"].to_pylist() if text)
            said = chunk_of(footer.column(0), rows._bytes).longest(rows._bytes, footer.column(0).compression)
            assert longest == said


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
def test_any_encoding_gives_the_rows_in_bounded_batches(tmp_path, encoding, monkeypatch):
    monkeypatch.setattr(parquet_rows, "_BATCH_BYTES", 1 << 20)
    data = [bytes(100_000) + bytes([row]) for row in range(100)]
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"image": data}), path, use_dictionary=False, column_encoding={"image": encoding})
    with open_parquet(path) as rows:
        batches = list(rows.batches(0, ["image"]))
    assert [value for batch in batches for value in batch.column(0).to_pylist()] == data
    assert max(batch.nbytes for batch in batches) <= 2 << 20


@pytest.mark.parametrize("at", range(4, 40, 3))
def test_damaged_page_headers_are_typed_errors(tmp_path, at):
    path = _repeated(tmp_path / "x.parquet", b"picture", 10)
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)
    try:
        with open_store(path) as store:
            store.read(0)
    except StoreError:
        pass  # some bytes are not needed for anything


def _coco(folder, images, annotations):
    (folder / "images").mkdir()
    for name in images:
        Image.new("RGB", (8, 8)).save(folder / "images" / name)
    said = {"images": [{"file_name": name, "id": 1} for name in images], "annotations": annotations}
    (folder / "boxes.json").write_text(json.dumps(said))
    return f"{folder}?images=images&boxes=boxes.json"


BOX = {"image_id": 1, "bbox": [0, 0, 1, 1], "category_id": 1}


@pytest.mark.parametrize("way", ["keypoints", "one id for many pictures"])
def test_objects_of_coco_that_take_gigabytes_are_refused(tmp_path, way, monkeypatch):
    if way == "keypoints":
        path = _coco(tmp_path, ["a.png"], [{**BOX, "keypoints": [0] * 60_000}, *[BOX] * 2000])
    else:
        monkeypatch.setattr(coco, "most_held", lambda size: (1 << 20) + 64 * size)
        path = _coco(tmp_path, [f"{number}.png" for number in range(200)], [BOX] * 1000)
    with pytest.raises(StoreError, match="too much for a file of that size"):
        open_store(path)


def test_objects_without_keypoints_have_as_many_as_others(tmp_path):
    points = [1, 2, 2, 3, 4, 1]
    with open_store(_coco(tmp_path, ["a.png"], [BOX, {**BOX, "keypoints": points}, BOX])) as store:
        names = [one.name for one in store.manifest.fields]
        fields = dict(zip(names, unpack(store.read(0), len(names)), strict=True))
    assert np.frombuffer(fields["keypoints"], "<f4").tolist() == [0] * 4 + [1, 2, 3, 4] + [0] * 4
    assert np.frombuffer(fields["visibility"], "<i8").tolist() == [0, 0, 2, 1, 0, 0]


def test_lines_of_json_that_make_a_table_of_gigabytes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("sophon.store.listing.rows.most_held", lambda size: (1 << 20) + 64 * size)
    lines = [json.dumps({f"{row}": 1}) for row in range(2000)]
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    with pytest.raises(StoreError, match="give all lines the same names"):
        open_store(tmp_path / "metadata.jsonl")


def test_an_inventory_that_unpacks_to_gigabytes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("sophon.store.bucket.inventory.most_held", lambda size: (1 << 20) + 64 * size)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(bytes(4 << 20)) * 2)
    said = {"sourceBucket": "b", "fileFormat": "CSV", "fileSchema": "Key", "files": [{"key": "a.csv.gz"}]}
    (tmp_path / "manifest.json").write_text(json.dumps(said))
    with pytest.raises(StoreError, match="unpacks to more than"):
        read_inventory(str(tmp_path / "manifest.json"), "", "b")
