"""Parquet files whose samples have several columns of bytes."""

import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sophon.bundle import unpack
from sophon.errors import ConfigError, StoreError
from sophon.store import open_store
from sophon.store.fields import Field
from tests.store.datasets import picture

COUNT = 7


def write(folder, **more):
    """Write two shards as Hugging Face does: pictures and masks as structs, features as plain bytes."""
    masks = [{"bytes": picture(20 + n), "path": f"{n}.png"} for n in range(COUNT)]
    columns = {
        "image": [{"bytes": picture(n), "path": f"{n}.jpg"} for n in range(COUNT)],
        "mask": masks,
        "feature": [bytes([n]) * n for n in range(COUNT)],
        "label": list(range(COUNT)),
        "boxes": [[float(n)] * 4 for n in range(COUNT)],
    } | more
    table = pa.table(columns)
    for number, (low, high) in enumerate(((0, 4), (4, COUNT))):
        pq.write_table(table.slice(low, high - low), folder / f"{number}.parquet", row_group_size=3)
    return folder


@pytest.mark.parametrize("cache_bytes", [10**9, 0])
def test_columns_of_bytes_are_the_fields_of_a_sample(tmp_path, cache_bytes):
    with open_store(f"{write(tmp_path)}?fields=image,mask,feature") as store:
        store.cache_bytes = cache_bytes
        kinds = (Field("image", "picture"), Field("mask", "mask"), Field("feature", "picture"))
        assert store.manifest.fields == kinds
        assert store.manifest.columns.column_names == ["boxes"]
        assert store.manifest.labels.tolist() == list(range(COUNT))
        for index in (5, 0, 6, 3, 1):
            data = store.read(index)
            assert len(data) == store.manifest.sizes[index]
            assert list(map(bytes, unpack(data, 3))) == [picture(index), picture(20 + index), bytes([index]) * index]
        only = store.narrowed(["feature"])
        assert bytes(unpack(only.read(4), 2)[1]) == bytes([4]) * 4
        assert store.narrowed([]).read(6) == picture(6)
        for one in (store, only):
            assert pickle.loads(pickle.dumps(one)).read(2) == one.read(2)


def test_the_first_field_says_which_column_is_the_picture(tmp_path):
    with open_store(f"{write(tmp_path)}?fields=mask,image") as store:
        assert list(map(bytes, unpack(store.read(3), 2))) == [picture(23), picture(3)]


@pytest.mark.filterwarnings("ignore:.*have no picture and are left out")
def test_masks_of_rows_without_a_picture_may_have_any_size(tmp_path):
    pictures = [{"bytes": picture(n) if n in (1, 6) else None, "path": None} for n in range(COUNT)]
    masks = [picture(20 + n) * 100 for n in range(COUNT)]
    with open_store(f"{write(tmp_path, image=pictures, mask=masks)}?fields=image,mask") as store:
        found = [list(map(bytes, unpack(store.read(index), 2))) for index in range(len(store))]
    assert found == [[picture(n), masks[n]] for n in (1, 6)]


def test_a_row_without_a_mask_is_an_error_that_names_sample_and_field(tmp_path):
    masks = [None if n == 5 else picture(20 + n) for n in range(COUNT)]
    with open_store(f"{write(tmp_path, mask=masks)}?fields=image,mask") as store:
        with pytest.raises(StoreError, match=r"sample 5 \('5.jpg'\): field 'mask': its row has no bytes"):
            store.read(5)
        assert store.narrowed([]).read(5) == picture(5)
        assert bytes(unpack(store.read(4), 2)[1]) == picture(24)


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ("image,depth", StoreError, "no byte column 'depth'; choose from image, mask, feature"),
        ("image,label", StoreError, "no byte column 'label'"),
        ("nothing,mask", StoreError, "no byte column 'nothing'"),
        ("image", ConfigError, "distinct column names"),
    ],
)
def test_fields_that_cannot_be_are_refused(tmp_path, fields, kind, words):
    with pytest.raises(kind, match=words):
        open_store(f"{write(tmp_path)}?fields={fields}")
