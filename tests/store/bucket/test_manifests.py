"""Listing a bucket once: manifests beside the data, listings that go on, S3 Inventory."""

import gzip
import json
import os
import pickle
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import quote_plus

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from sophon.cli.main import cli
from sophon.errors import ArtifactError, ConfigError, StoreError
from sophon.store import open_store
from sophon.store.address import parse_address
from sophon.store.bucket import table, tree
from sophon.store.bucket.account import ACCOUNT
from sophon.store.bucket.client import client_of
from sophon.store.bucket.exchange import read_manifest, write_manifest
from sophon.store.bucket.table import list_manifest
from sophon.store.manifest import Manifest
from tests.store.bucket.test_stores import same, upload
from tests.store.datasets import picture, write_files, write_tar


def run(*arguments):
    result = CliRunner().invoke(cli, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def address(seaweedfs, use, tmp_path):
    use(seaweedfs)
    names = [f"{c}/{n:03} ü+&.jpg" for c in ("b", "a", "a-b") for n in range(30)]
    root = write_files(tmp_path / "data", {name: picture(n) for n, name in enumerate(names)})
    return upload(seaweedfs, root, tmp_path.name)


def test_opening_lists_nothing_where_there_is_a_manifest(address, seaweedfs, tmp_path):
    out = json.loads(run("manifest", address, "--cache-dir", tmp_path / "one", "--json", "-"))
    assert out["samples"] == 90
    assert out["path"] == f"{address}.sophon-manifest"
    lists = ACCOUNT.lists
    with open_store(tmp_path / "data") as files, open_store(address, cache_dir=tmp_path / "two") as objects:
        same(files, objects)
    gets = ACCOUNT.gets
    open_store(address, cache_dir=tmp_path / "two")  # from the copy in the cache
    assert (ACCOUNT.lists, ACCOUNT.gets) == (lists, gets)
    seaweedfs.put({f"{tmp_path.name}/b/new.jpg": picture(7)})
    assert len(open_store(address, cache_dir=tmp_path / "two")) == 90
    run("manifest", address, "--cache-dir", tmp_path / "one")
    assert len(open_store(address, cache_dir=tmp_path / "two")) == 91


def test_objects_are_read_by_a_manifest_in_pages(address, tmp_path):
    store, file = open_store(address), tmp_path / "m.arrow"
    store.manifest.save(file)
    with open_store(tmp_path / "data") as files:
        in_pages = store.holding(Manifest.load(file, held_bytes=-1))
        assert in_pages.manifest.file is not None
        other = pickle.loads(pickle.dumps(in_pages))
        for sample in range(90):
            assert in_pages.read(sample) == other.read(sample) == files.read(sample)
            assert in_pages.identity(sample) == store.identity(sample)
    cut = store.holding(Manifest.load(file, held_bytes=-1))
    os.truncate(file, 1000)
    with pytest.raises(StoreError, match="the list of samples has changed since it was opened"):
        cut.read(0)
    outside = replace(store.manifest, ids=pa.array(["../x"] * 90, pa.large_string()))
    with pytest.raises(StoreError, match=r"'\.\./x', which is outside the data set"):
        store.holding(outside).read(3)


def test_a_manifest_that_is_given_is_converted_once(address, tmp_path, monkeypatch):
    file = tmp_path / "m.parquet"
    run("manifest", address, "-o", file, "--cache-dir", tmp_path)
    read = []
    real = table.read_manifest
    monkeypatch.setattr(table, "read_manifest", lambda *given: read.append(given) or real(*given))
    for _ in range(2):  # it was written a moment ago, and may be again without a trace
        open_store(f"{address}?manifest={file}")
    assert len(read) == 2
    os.utime(file, (1e9, 1e9))
    prints = {open_store(f"{address}?manifest={file}").manifest.fingerprint for _ in range(3)}
    assert len(read) == 3
    assert len(prints) == 1
    write_manifest(real(str(file)).select(np.arange(5)), file)
    os.utime(file, (1e9, 1e9))
    assert len(open_store(f"{address}?manifest={file}")) == 5


def test_a_manifest_is_parquet_that_anybody_can_read(address, tmp_path):
    run("manifest", address, "-o", tmp_path / "m.parquet", "--cache-dir", tmp_path)
    rows = pq.read_table(tmp_path / "m.parquet")
    assert rows.column_names == ["key", "size", "label", "etag"]
    objects = {o.key: o for page in client_of(parse_address(address)).objects(tmp_path.name) for o in page}
    for row in rows.to_pylist():
        found = objects[f"{tmp_path.name}/{row['key']}"]
        assert (row["size"], row["etag"]) == (found.size, found.etag)
    with open_store(f"{address}?manifest={tmp_path / 'm.parquet'}") as given, open_store(tmp_path / "data") as files:
        same(files, given)


def test_shards_have_manifests_too(seaweedfs, use, tmp_path):
    use(seaweedfs)
    for shard in range(3):
        members = [(f"{shard}{n}.jpg", picture(10 * shard + n)) for n in range(5)]
        write_tar(tmp_path / "tars" / f"a-{shard}.tar", members)
    address = upload(seaweedfs, tmp_path / "tars", tmp_path.name)
    run("manifest", address, "--cache-dir", tmp_path / "one")
    lists = ACCOUNT.lists
    with open_store(tmp_path / "tars") as files, open_store(address, cache_dir=tmp_path / "two") as objects:
        same(files, objects)
    assert ACCOUNT.lists == lists


def test_a_listing_that_was_stopped_goes_on(address, tmp_path, monkeypatch):
    monkeypatch.setattr(tree, "_PIECE", 10)
    monkeypatch.setattr(tree, "AT_ONCE", 1)
    monkeypatch.setattr(tree, "_ENOUGH", 1)  # folders are listed and not looked into
    monkeypatch.setattr("sophon.store.bucket.client._PAGE", 5)
    expected = open_store(address, cache_dir=tmp_path / "cache").manifest

    def stop(done, _):
        if done >= 50:
            raise KeyboardInterrupt

    journal = tmp_path / "journal"
    with pytest.raises(KeyboardInterrupt):
        list_manifest(parse_address(address), journal, on_progress=stop)
    with journal.open("ab") as file:
        file.write(b"half a frame")
    manifest, known = list_manifest(parse_address(address), journal)
    assert 50 <= known < 90
    assert manifest.fingerprint == expected.fingerprint
    assert manifest.locations.equals(expected.locations)
    assert not journal.exists()


def _inventory(address, folder, form):
    """Write what S3 would, of the objects of a bucket."""
    client = client_of(parse_address(address))
    rows = [
        {
            "bucket": "bucket",
            "key": one.key,
            "size": one.size,
            "last_modified_date": datetime(2026, 1, 1, tzinfo=UTC),
            "e_tag": one.etag.strip('"'),
            "is_latest": True,
            "is_delete_marker": False,
        }
        for page in client.objects("")
        for one in page
    ]
    rows.append(rows[0] | {"key": rows[0]["key"] + ".jpg", "is_latest": False})
    rows.append(rows[0] | {"key": rows[0]["key"] + ".jpg", "is_delete_marker": True})
    folder.mkdir()
    if form == "Parquet":
        pq.write_table(pa.Table.from_pylist(rows), folder / "one.data")
    else:
        lines = []
        for row in rows:
            values = row | {"key": quote_plus(row["key"], safe="/"), "last_modified_date": "2026-01-01T00:00:00.000Z"}
            lines.append(",".join(f'"{str(v).lower() if isinstance(v, bool) else v}"' for v in values.values()))
        (folder / "one.data").write_bytes(gzip.compress("\n".join(lines).encode()))
    schema = "Bucket, Key, Size, LastModifiedDate, ETag, IsLatest, IsDeleteMarker"
    meta = {"sourceBucket": "bucket", "fileFormat": form, "fileSchema": schema, "files": [{"key": "inv/data/one.data"}]}
    (folder / "manifest.json").write_text(json.dumps(meta))
    return folder / "manifest.json"


@pytest.mark.parametrize("form", ["CSV", "Parquet"])
def test_an_inventory_says_the_same_as_a_listing(address, tmp_path, form):
    inventory = _inventory(address, tmp_path / "inventory", form)
    lists = ACCOUNT.lists
    run("manifest", address, "--inventory", inventory, "-o", tmp_path / "m.parquet", "--cache-dir", tmp_path)
    assert ACCOUNT.lists == lists
    with open_store(f"{address}?manifest={tmp_path / 'm.parquet'}") as given, open_store(tmp_path / "data") as files:
        same(files, given)


def test_wrong_manifests_and_inventories_are_refused(address, tmp_path):
    inventory = _inventory(address, tmp_path / "inventory", "CSV")
    meta = json.loads(inventory.read_text())
    for change, problem in (
        ({"sourceBucket": "other"}, "of the bucket 'other'"),
        ({"fileFormat": "ORC"}, "as CSV or Parquet"),
        ({"fileSchema": "Bucket, Key, Size"}, "cannot be read"),
        ({"fileSchema": "Bucket, Key, Size, A, B, C, D"}, "without etag"),
        ({"files": 3}, "is not an S3 Inventory manifest"),
    ):
        inventory.write_text(json.dumps(meta | change))
        with pytest.raises((ConfigError, StoreError), match=problem):
            list_manifest(parse_address(address), tmp_path / "journal", str(inventory))
    manifest = open_store(address, cache_dir=tmp_path).manifest
    file = tmp_path / "m.parquet"
    write_manifest(manifest, file)
    rows = pq.read_table(file)
    etags = ['"other"', *rows["etag"].to_pylist()[1:]]
    pq.write_table(rows.set_column(rows.column_names.index("etag"), "etag", pa.array(etags)), file)
    with pytest.raises(ArtifactError, match="do not match its fingerprint"):
        read_manifest(str(file))
    file.write_bytes(b"PAR1")
    with pytest.raises(ArtifactError, match="not a readable manifest"):
        open_store(f"{address}?manifest={file}")
