"""The manifest: what it checks, what its fingerprint depends on, and its file."""

import hashlib
import json
import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sophon.errors import ArtifactError
from sophon.store.manifest import Manifest, decode_name, encode_name, sources_table

row = st.tuples(st.text(max_size=12), st.integers(0, 2**62), st.integers(-(2**62), 2**62))
rows = st.one_of(st.lists(row, max_size=12), st.builds(lambda few: few * 90, st.lists(row, min_size=3, max_size=6)))

SHARDS = np.arange(3, dtype=np.int32)


def _manifest(**changes):
    fields = {
        "kind": "tar",
        "ids": pa.array(["a/1", "b/2", "ü/3"], pa.large_string()),
        "sizes": np.array([10, 0, 30]),
        "labels": np.array([0, 1, -1]),
        "classes": ("a", "b", "\udcff"),
        "columns": pa.table({"json": ["{}", None, "[1]"], "boxes": [[1.0], [], None]}),
        "locations": pa.table({"shard": SHARDS, "path": pa.array([b"x", b"", b"\xff"], pa.large_binary())}),
        "sources": sources_table(["s.tar", "\udc80"], [100, 200], [1, 2]),
        "notes": ("one note",),
    }
    return Manifest(**(fields | changes))


def _same(one: Manifest, two: Manifest) -> None:
    for name in ("kind", "classes", "notes", "fingerprint"):
        assert getattr(one, name) == getattr(two, name)
    for name in ("ids", "columns", "locations", "sources"):
        assert getattr(one, name).equals(getattr(two, name)), name
    assert np.array_equal(one.sizes, two.sizes)
    assert (one.labels is None) == (two.labels is None)
    assert one.labels is None or np.array_equal(one.labels, two.labels)


def test_a_manifest_comes_back_from_its_file(tmp_path):
    for manifest in (
        _manifest(),
        _manifest(labels=None, columns=pa.table({}), locations=pa.table({}), classes=(), notes=()),
        Manifest("folder", pa.array([], pa.large_string()), np.empty(0, np.int64)),
    ):
        manifest.save(tmp_path / "m.arrow")
        _same(Manifest.load(tmp_path / "m.arrow"), manifest)
        _same(pickle.loads(pickle.dumps(manifest)), manifest)
    assert [path.name for path in tmp_path.iterdir()] == ["m.arrow"]


def test_arrays_cannot_be_changed(tmp_path):
    manifest = _manifest()
    manifest.save(tmp_path / "m.arrow")
    for each in (manifest, Manifest.load(tmp_path / "m.arrow"), pickle.loads(pickle.dumps(manifest))):
        with pytest.raises(ValueError, match="read-only"):
            each.sizes[0] = 1
        with pytest.raises(AttributeError):
            each.kind = "folder"


def test_chunked_and_sliced_ids_are_the_same_as_whole_ones():
    whole = pa.array(["no", "a/1", "b/2", "ü/3", "no"], pa.large_string())
    chunked = pa.chunked_array([whole[1:2], whole[2:4]])
    assert _manifest(ids=whole[1:4]).fingerprint == _manifest(ids=chunked).fingerprint == _manifest().fingerprint


@given(rows=rows, labelled=st.booleans())
@settings(max_examples=100, deadline=None)
def test_the_fingerprint_is_what_its_definition_says(rows, labelled):
    ids, sizes, labels = ([row[i] for row in rows] for i in range(3))
    manifest = Manifest(
        "folder",
        pa.array(ids, pa.large_string()),
        np.array(sizes, np.int64),
        np.array(labels, np.int64) if labelled else None,
    )

    def packed(numbers):
        return b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)

    parts = [b"sophon manifest 2\n", len(rows).to_bytes(8, "little"), b"sizes", hashlib.sha256(packed(sizes)).digest()]
    parts += [b"labels", hashlib.sha256(packed(labels)).digest()] if labelled else []
    parts.append(b"ids")
    for start in range(0, len(ids), 256):
        texts = [text.encode() for text in ids[start : start + 256]]
        page = b"".join(len(text).to_bytes(4, "little") for text in texts) + b"".join(texts)
        parts.append(hashlib.sha256(page).digest()[:16])
    assert manifest.fingerprint == hashlib.sha256(b"".join(parts)).hexdigest()[:32]


def test_the_fingerprint_depends_on_ids_sizes_and_labels_and_on_nothing_else():
    base = _manifest().fingerprint
    assert base == "242f9518695d8fa9fc06bb716a93ada1"
    moved = pa.array(["a/1b", "/2", "ü/3"], pa.large_string())  # the same bytes, divided elsewhere
    for changes in ({"ids": moved}, {"sizes": np.array([10, 1, 30])}, {"labels": None}, {"labels": np.zeros(3)}):
        assert _manifest(**changes).fingerprint != base
    others = {"kind": "folder", "classes": (), "columns": pa.table({}), "locations": pa.table({}), "notes": ()}
    assert _manifest(**others, sources=sources_table([], [], [])).fingerprint == base


@pytest.mark.parametrize(
    "changes",
    [
        {"sizes": np.array([1, 2])},
        {"labels": np.array([1, 2, 3, 4])},
        {"columns": pa.table({"x": [1]})},
        {"locations": pa.table({"x": [1, 2]})},
        {"sizes": np.array([1, -2, 3])},
        {"ids": pa.array(["a", None, "c"], pa.large_string())},
        {"sources": pa.table({"name": ["x"]})},
    ],
)
def test_rows_that_do_not_fit_together_are_refused(changes):
    with pytest.raises(ArtifactError, match=r"expected .*Delete the file"):
        _manifest(**changes)


def test_files_that_are_no_manifests_are_refused(tmp_path):
    file = tmp_path / "m.arrow"
    with pytest.raises(ArtifactError, match=r"m\.arrow is not a readable manifest"):
        Manifest.load(file)
    table = pa.table({"id": ["x"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    for content in (b"", b"ARROW1\0\0", b"text" * 100, sink.getvalue().to_pybytes()):
        file.write_bytes(content)
        with pytest.raises(ArtifactError, match=r"m\.arrow is not a readable manifest.*Delete the file"):
            Manifest.load(file)


def _rewrite(table: pa.Table, meta: dict) -> pa.Table:
    metadata = dict(table.schema.metadata)
    metadata[b"sophon.manifest"] = json.dumps(json.loads(metadata[b"sophon.manifest"]) | meta).encode()
    return table.replace_schema_metadata(metadata)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: _rewrite(t, {"format": 1}), r"expected a manifest of format 5, got 1\. Delete the file"),
        (lambda t: _rewrite(t, {"fingerprint": "0" * 32}), "fingerprint"),
        (lambda t: t.set_column(1, "bytes", pa.array([10, 0, 31])), "fingerprint"),
        (lambda t: t.set_column(1, "bytes", pa.array([10, None, 30])), "expected integers and no nulls"),
        (lambda t: t.set_column(1, "bytes", pa.array([1.5, 2.0, 3.0])), "expected integers and no nulls"),
        (lambda t: t.set_column(5, "location/shard", pa.array([0, 1, 1], pa.int32())), "fingerprint"),
        (lambda t: t.slice(0, 2), "fingerprint"),
        (lambda t: t.replace_schema_metadata({}), "expected a manifest, got another Arrow file"),
    ],
)
def test_a_table_for_exchange_that_was_changed_is_refused(change, message):
    table = _manifest().to_table()
    _same(Manifest.from_table(table), _manifest())
    changed = change(table)
    with pytest.raises(ArtifactError, match=message):
        Manifest.from_table(changed)


def test_saving_fails_without_leaving_anything_behind(tmp_path):
    (tmp_path / "m.arrow").mkdir()
    with pytest.raises(OSError, match="directory"):
        _manifest().save(tmp_path / "m.arrow")
    assert [path.name for path in tmp_path.iterdir()] == ["m.arrow"]


@given(st.lists(st.text(alphabet=st.characters(blacklist_categories=()), max_size=6), max_size=6))
@settings(deadline=None)
def test_encoded_names_sort_as_names_do_and_come_back(names):
    assert [decode_name(name) for name in sorted(map(encode_name, names))] == sorted(names)
