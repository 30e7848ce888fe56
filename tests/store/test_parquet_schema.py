"""Which columns of a Parquet file are the picture, the label and the rest."""

import json

import pyarrow as pa
import pytest

from sophon.errors import StoreError
from sophon.store.parquet_schema import roles_of

STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def _roles(features=None, **columns):
    schema = pa.schema(list(columns.items()))
    if features is not None:
        schema = schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    return roles_of(schema, "shard x")


def test_the_layout_of_hugging_face_is_understood():
    feature = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    roles = _roles(feature, image=STRUCT, label=pa.int64(), caption=pa.string())
    assert (roles.image, roles.bytes_path, roles.name_path) == ("image", "image.bytes", "image.path")
    assert (roles.label, roles.classes, roles.others) == ("label", ("cat", "dog"), ("caption",))


@pytest.mark.parametrize(
    ("columns", "image"),
    [
        ({"image": STRUCT}, "image"),
        ({"photo": pa.large_binary()}, "photo"),
        ({"IMG": pa.binary(), "mask": STRUCT}, "IMG"),
        ({"mask": pa.binary(), "jpg": pa.binary()}, "jpg"),
        ({"image": pa.string(), "data": pa.binary()}, "data"),
        ({"x": pa.struct([("path", pa.string()), ("bytes", pa.large_binary())])}, "x"),
    ],
)
def test_the_picture_is_the_column_of_that_name_or_the_only_one(columns, image):
    assert _roles(**columns).image == image


@pytest.mark.parametrize(
    ("columns", "label"),
    [
        ({"label": pa.int64(), "id": pa.int64()}, "label"),
        ({"coarse_label": pa.int64(), "fine_label": pa.int64()}, "fine_label"),
        ({"whatever": pa.uint8(), "text": pa.string()}, "whatever"),
        ({"width": pa.int32(), "height": pa.int32()}, None),
        ({"__index_level_0__": pa.int64()}, None),
        ({"label": pa.string()}, None),
        ({"labels": pa.list_(pa.int64())}, None),
        ({}, None),
    ],
)
def test_the_label_is_the_column_of_that_name_or_the_only_integer(columns, label):
    assert _roles(image=STRUCT, **columns).label == label


def test_a_column_of_classes_comes_before_one_that_is_only_named_label():
    features = {"breed": {"names": ["a", "b"], "_type": "ClassLabel"}, "label": {"dtype": "int64", "_type": "Value"}}
    roles = _roles(features, image=STRUCT, label=pa.int64(), breed=pa.int64())
    assert (roles.label, roles.classes, roles.others) == ("breed", ("a", "b"), ("label",))


def test_other_pictures_do_not_come_along():
    assert _roles(image=STRUCT, mask=STRUCT, depth=pa.binary(), text=pa.string()).others == ("text",)


@pytest.mark.parametrize(
    "columns", [{"text": pa.string()}, {"a": pa.binary(), "b": STRUCT}, {"image": pa.struct([("path", pa.string())])}]
)
def test_without_a_picture_or_with_several_it_is_refused(columns):
    with pytest.raises(StoreError, match=r"shard x: expected one column of binary .*; rename the picture column"):
        _roles(**columns)


def test_columns_of_one_name_are_refused():
    schema = pa.schema([("image", STRUCT), ("a", pa.string()), ("a", pa.string())])
    with pytest.raises(StoreError, match="several columns with the same name"):
        roles_of(schema, "shard x")


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"info": null}', b'{"info": {"features": 3}}', b"\xff", b"[" * 99999]
)
def test_metadata_that_is_not_hugging_faces_is_passed_over(text):
    schema = pa.schema([("image", STRUCT), ("label", pa.int64())]).with_metadata({"huggingface": text})
    assert roles_of(schema, "x").classes == ()
