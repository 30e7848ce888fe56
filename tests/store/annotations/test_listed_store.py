"""Listings whose columns name several files: the files themselves, and errors that name sample and field."""

import json
import pickle
import warnings

import pytest

from sophon.bundle import unpack
from sophon.errors import ConfigError, StoreError
from sophon.store import open_store
from sophon.store.fields import Field
from tests.store.datasets import picture, settle, write_files

COUNT = 4


def with_files(root, rows):
    files = {f"img/{number}.jpg": picture(number) for number in range(COUNT)}
    files |= {f"gt/{number}.png": picture(20 + number) for number in range(COUNT)}
    write_files(root, files)
    (root / "rows.csv").write_text("photo,mask,depth,split\n" + "\n".join(rows) + "\n")
    return root / "rows.csv"


def good(number):
    return f"img/{number}.jpg,gt/{number}.png,,{'train' if number % 2 else 'val'}"


def quiet(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return open_store(path)


def test_columns_of_a_listing_name_the_files_of_a_sample(tmp_path):
    listing = with_files(tmp_path, map(good, range(COUNT)))
    with open_store(f"{listing}?fields=photo,mask") as store:
        assert store.manifest.fields == (Field("image", "picture"), Field("mask", "mask"))
        assert store.manifest.ids.to_pylist() == [f"img/{number}.jpg" for number in range(COUNT)]
        assert store.manifest.columns.column_names == ["depth", "split"]
        for index in range(COUNT):
            data = store.read(index)
            assert len(data) == store.manifest.sizes[index]
            assert list(map(bytes, unpack(data, 2))) == [picture(index), picture(20 + index)]
        assert store.narrowed([]).read(1) == picture(1)
        assert pickle.loads(pickle.dumps(store)).read(2) == store.read(2)


def test_rows_are_selected_and_json_lines_do_as_well(tmp_path):
    with_files(tmp_path, map(good, range(COUNT)))
    rows = [{"image": f"img/{n}.jpg", "annotation": f"./gt/{n}.png", "n": n} for n in range(COUNT)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with open_store(f"{tmp_path / 'rows.jsonl'}?fields=image,annotation&where=n > 1") as store:
        assert store.manifest.fields == (Field("image", "picture"), Field("annotation", "picture"))
        assert [bytes(unpack(store.read(at), 2)[1]) for at in range(2)] == [picture(22), picture(23)]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("", "its row names no file"),
        ("gt/none.png", "there is no file 'gt/none.png'"),
        ("../rows.csv", "is outside the data set"),
        ("/etc/passwd", "is outside the data set"),
        ("gt", "'gt' is not a file"),
    ],
)
def test_a_missing_file_is_an_error_that_names_sample_and_field(tmp_path, said, words):
    rows = [good(0), f"img/1.jpg,{said},,x", good(2)]
    listing = with_files(tmp_path, rows)
    with pytest.warns(UserWarning, match="files for 1 sample in .* are missing"):
        store = open_store(f"{listing}?fields=photo,mask")
    with pytest.raises(StoreError, match=rf"sample 1 \('img/1.jpg'\): field 'mask': .*{words}"):
        store.read(1)
    assert store.narrowed([]).read(1) == picture(1)  # for whoever wants no masks
    store.read(2)


def test_what_changes_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    listing = with_files(tmp_path / "data", map(good, range(COUNT)))
    settle(tmp_path / "data")
    path = f"{listing}?fields=photo,mask"
    first = open_store(path).manifest.fingerprint
    assert open_store(path).manifest.fingerprint == first
    (listing.parent / "gt" / "2.png").unlink()
    with pytest.raises(StoreError, match=r"sample 2 .*field 'mask'"):
        quiet(path).read(2)
    (listing.parent / "gt" / "2.png").write_bytes(picture(50))
    assert bytes(unpack(quiet(path).read(2), 2)[1]) == picture(50)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("photo,depths", "no further column 'depths'; choose from 'mask', 'depth', 'split'"),
        ("photo", "distinct column names"),
        ("photo,mask,mask", "distinct column names"),
        ("photo,depth", "column 'depth' .* holds null, expected paths"),
        ("nothing,mask", "no column named 'nothing'"),
    ],
)
def test_fields_that_cannot_be_are_refused(tmp_path, fields, words):
    listing = with_files(tmp_path, map(good, range(COUNT)))
    with pytest.raises(ConfigError, match=words):
        open_store(f"{listing}?fields={fields}")
