"""Listings of every form: what becomes of paths, labels and columns, and what is refused, with its row."""

import json
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sophon.errors import ConfigError, StoreError
from sophon.store import open_store
from tests.store.datasets import picture, settle, write_files

FILES = {f"img/{i}.jpg": picture(i) for i in range(6)}


def _csv(root, text, name="list.csv", files=FILES):
    write_files(root, files)
    data = text if isinstance(text, bytes) else text.encode()
    return write_files(root, {name: data}) / name


ROWS = [
    {"file": f"img/{i}.jpg", "label": ["dog", "cat", "owl"][i % 3], "width": 10 * i, "split": "ab"[i % 2]}
    for i in range(6)
]


def _write(root, suffix):
    if suffix in (".csv", ".tsv"):
        mark = "," if suffix == ".csv" else "\t"
        lines = [mark.join(ROWS[0]), *(mark.join(map(str, row.values())) for row in ROWS)]
        return _csv(root, "\n".join(lines), f"list{suffix}")
    if suffix == ".parquet":
        write_files(root, FILES)
        pq.write_table(pa.Table.from_pylist(ROWS), root / "list.parquet")
        return root / "list.parquet"
    return _csv(root, "\n".join(map(json.dumps, ROWS)) + "\n", f"list{suffix}")


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"])
def test_a_listing_of_every_form_gives_files_classes_and_columns_in_its_order(tmp_path, suffix):
    path = _write(tmp_path, suffix)
    store = open_store(path)
    assert store.kind == "listing"
    assert [store.read(i) for i in range(6)] == list(FILES.values())
    assert store.manifest.ids.to_pylist() == list(FILES)
    assert store.manifest.classes == ("cat", "dog", "owl")
    assert [store.manifest.classes[label] for label in store.manifest.labels] == [row["label"] for row in ROWS]
    assert store.manifest.values(4, ["width", "split", "id"]) == {"width": 40, "split": "a", "id": "img/4.jpg"}


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_where_selects_rows_and_keeps_the_numbers_of_classes(tmp_path, suffix):
    store = open_store(f"{_write(tmp_path, suffix)}?where=split = 'b' and width >= 30")
    assert [store.read(i) for i in range(2)] == [picture(3), picture(5)]
    assert store.manifest.classes == ("cat", "dog", "owl")
    assert store.manifest.labels.tolist() == [1, 2]
    assert store.manifest.columns["width"].to_pylist() == [30, 50]


@pytest.mark.parametrize(
    "text", ['path,note\nimg/0.jpg,"a\nb"\ngone.jpg,x\n', "path,note\n\nimg/0.jpg,a\n\ngone.jpg,x\n"]
)
def test_rows_are_counted_where_they_are_not_lines(tmp_path, text):
    with pytest.raises(StoreError, match=r"row 2 of .*: there is no file 'gone\.jpg'"):
        open_store(_csv(tmp_path, text))


def test_a_long_path_does_not_fill_the_screen(tmp_path):
    with pytest.raises(StoreError, match=r"line 2 .* cannot be examined") as error:
        open_store(_csv(tmp_path, f"path\n{'x' * 10_000}.jpg\n"))
    assert len(str(error.value)) < 500


def test_files_that_no_selected_row_names_need_not_exist(tmp_path):
    path = _csv(tmp_path, "path,label,split\nimg/0.jpg,x,train\nimg/gone.jpg,y,test\n")
    assert len(open_store(f"{path}?where=split = 'train'")) == 1
    with pytest.raises(StoreError, match=r"line 3 of .*list.csv: there is no file 'img/gone.jpg' .*remove the row"):
        open_store(path)


def test_two_selections_are_not_taken_for_each_other_from_the_cache(tmp_path):
    path = _write(tmp_path, ".csv")
    settle(tmp_path)
    ids = {where: open_store(f"{path}?where=split = '{where}'").manifest.ids.to_pylist() for where in "abab"}
    assert ids["a"] == [f"img/{i}.jpg" for i in (0, 2, 4)]
    assert ids["b"] == [f"img/{i}.jpg" for i in (1, 3, 5)]
    assert len(open_store(path)) == 6


def test_a_listing_that_changes_is_read_again(tmp_path):
    path = _write(tmp_path, ".csv")
    settle(tmp_path)
    assert len(open_store(path)) == 6
    path.write_text("file,label\nimg/0.jpg,a\n")
    assert len(open_store(path)) == 1


def test_a_file_that_is_removed_is_noticed(tmp_path):
    path = _write(tmp_path, ".csv")
    settle(tmp_path)
    open_store(path)
    (tmp_path / "img/3.jpg").unlink()
    with pytest.raises(StoreError, match=r"line 5 .*no file 'img/3.jpg'"):
        open_store(path)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("path\nimg/0.jpg\nimg/1.jpg\n", None),
        ("path,label\nimg/0.jpg,3\nimg/1.jpg,1\n", [3, 1]),
        ("path,label\nimg/0.jpg,true\nimg/1.jpg,false\n", [1, 0]),
        ("path,Class\nimg/0.jpg,zebra\nimg/1.jpg,ant\n", [1, 0]),
        ("path;target\nimg/0.jpg;5\nimg/1.jpg;6\n", [5, 6]),
        ('path,label\n"img/0.jpg","a ""b"""\nimg/1.jpg,"x\ny"\n', [0, 1]),
        ("\ufeffpath,label\r\nimg/0.jpg,1\r\nimg/1.jpg,2\r\n", [1, 2]),
    ],
)
def test_labels_in_csv(tmp_path, text, labels):
    manifest = open_store(_csv(tmp_path, text)).manifest
    assert (None if manifest.labels is None else manifest.labels.tolist()) == labels


def test_float_targets_and_several_labels_in_one_text_stay_columns(tmp_path):
    path = _csv(tmp_path, "path,target\nimg/0.jpg,0.5\nimg/1.jpg,1.25\n")
    with pytest.warns(UserWarning, match=r"'target' .* is not used as a label.*columns=\['target'\]"):
        manifest = open_store(path).manifest
    assert manifest.labels is None
    assert [manifest.values(i, ["target"])["target"] for i in range(2)] == [0.5, 1.25]
    path = _csv(tmp_path, "path,labels\nimg/0.jpg,haze water\nimg/1.jpg,haze\nimg/2.jpg,water\n", "tags.csv")
    with pytest.warns(UserWarning, match="several labels each"):
        manifest = open_store(path).manifest
    assert manifest.labels is None
    assert manifest.columns["labels"].to_pylist() == ["haze water", "haze", "water"]
    assert open_store(f"{path}?label=labels").manifest.classes == ("haze", "haze water", "water")


def test_class_names_with_commas_are_classes(tmp_path):
    path = _csv(tmp_path, 'path,label\nimg/0.jpg,"tench, Tinca tinca"\nimg/1.jpg,"goldfish, Carassius auratus"\n')
    assert open_store(path).manifest.labels.tolist() == [1, 0]


def test_rows_without_a_label_get_minus_one_and_a_note(tmp_path):
    path = _csv(tmp_path, "path,label\nimg/0.jpg,a\nimg/1.jpg,\n")
    with pytest.warns(UserWarning, match="1 of 2 samples .* have no label and get -1"):
        assert open_store(path).manifest.labels.tolist() == [0, -1]


def test_columns_are_told_where_their_names_say_nothing(tmp_path):
    path = _csv(tmp_path, "what,kind,label\nimg/0.jpg,b,1\nimg/1.jpg,a,2\n")
    with pytest.raises(ConfigError, match=r"no column of paths.*'what', 'kind', 'label'; write list.csv\?path=COLUMN"):
        open_store(path)
    manifest = open_store(f"{path}?path=what&label=kind").manifest
    assert (manifest.labels.tolist(), manifest.columns.column_names) == ([1, 0], ["label"])
    assert open_store(f"{path}?path=what&label=none").manifest.labels is None


def test_kaggles_ids_without_an_ending_name_files(tmp_path):
    path = _csv(tmp_path, "id,breed\n0,pug\n007,boxer\n", files={"0.jpg": b"zero", "007.jpg": b"seven"})
    store = open_store(path)
    assert [store.read(i) for i in range(2)] == [b"zero", b"seven"]
    assert store.manifest.classes == ("boxer", "pug")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("/etc/passwd", "line 3 .*'/etc/passwd' is not relative to the listing"),
        ("../secret.jpg", "line 3 .*leads out of the folder of the listing"),
        ("img/../../secret.jpg", "line 3 .*leads out of the folder"),
        ("..", "line 3 .*leads out of the folder"),
        ("~/x.jpg", "line 3 .*is not relative"),
        ("https://x.org/a.jpg", "line 3 .*is an address and not a path"),
        ("img", "line 3 .*'img' in .* is not a file"),
        ("./img/../img/0.jpg", "line 3 .*names 'img/0.jpg' again, after line 2"),
        ('""', "line 3 .*the path is empty"),
        ("img/0.jpg/x", "line 3 .*there is no file"),
    ],
)
def test_a_path_that_leads_elsewhere_is_refused_with_its_row(tmp_path, row, message):
    write_files(tmp_path, {"secret.jpg": b"secret"})
    path = _csv(tmp_path / "data", f"path,label\nimg/0.jpg,1\n{row},2\n")
    with pytest.raises(StoreError, match=message):
        open_store(path)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", b"path,label\nimg/0.jpg,1\nimg/1.jpg\n", "not a readable listing: .*Expected 2 columns, got 1"),
        ("a.csv", b"path,label\nimg/0.jpg,\xe9\n", "line 2 of .* is not UTF-8: e9 0a; save it as UTF-8"),
        ("a.csv", "path\nimg/0.jpg\n".encode("utf-16"), "is not UTF-8"),
        ("a.csv", b"", "not a readable listing"),
        ("a.csv", b"path,label\n", "lists no files"),
        ("a.csv", b"path,x,x\nimg/0.jpg,1,2\n", "several columns named 'x'"),
        ("a.jsonl", b'{"path": "img/0.jpg"}\n{"path": \n', "line 2 of .* is not JSON"),
        ("a.jsonl", b'{"path": "img/0.jpg"}\n["img/1.jpg"]\n', "line 2 of .* expected an object"),
        ("a.jsonl", b'{"path": "img/0.jpg", "n": 1}\n{"path": "img/1.jpg", "n": "x"}\n', "line 2 of .*'n' is 'x'"),
        ("a.jsonl", b"", "lists no files"),
        ("a.parquet", b"PAR1 no", "not a readable|cannot access|not a data set"),
    ],
)
def test_a_broken_listing_says_which_line_and_what_to_do(tmp_path, name, data, message):
    path = _csv(tmp_path, data, name)
    with pytest.raises(StoreError, match=message):
        open_store(path)


def test_hugging_faces_metadata_in_a_folder_is_used_and_said(tmp_path):
    rows = "file_name,label,caption\n0.jpg,b,hello\n1.jpg,a,world\n"
    write_files(tmp_path / "data", {**{f"{i}.jpg": picture(i) for i in range(3)}, "metadata.csv": rows.encode()})
    with warnings.catch_warnings(record=True, action="always") as told:
        store = open_store(tmp_path / "data")
    notes = " ".join(str(one.message) for one in told)
    assert "labels and columns of" in notes
    assert "1 pictures in" in notes
    assert store.name == "data"
    assert [store.read(i) for i in range(2)] == [picture(0), picture(1)]
    assert store.manifest.labels.tolist() == [1, 0]
    assert store.manifest.columns["caption"].to_pylist() == ["hello", "world"]
    assert open_store(f"{tmp_path / 'data'}?listing=none").manifest.labels is None


def test_metadata_without_labels_leaves_the_class_folders_their_labels(tmp_path):
    lines = [json.dumps({"file_name": f"{c}/0.jpg", "text": c * 3}) for c in "ba"]
    write_files(tmp_path, {"a/0.jpg": b"A", "b/0.jpg": b"BB", "metadata.jsonl": "\n".join(lines).encode()})
    with pytest.warns(UserWarning, match="labels and columns of"):
        store = open_store(tmp_path)
    assert (store.manifest.classes, store.manifest.labels.tolist()) == (("a", "b"), [1, 0])
    assert store.manifest.columns["text"].to_pylist() == ["bbb", "aaa"]


def test_labels_of_metadata_and_class_folders_in_conflict_are_told(tmp_path):
    write_files(
        tmp_path, {"a/0.jpg": b"A", "b/0.jpg": b"B", "metadata.csv": b"file_name,label\na/0.jpg,x\nb/0.jpg,x\n"}
    )
    with warnings.catch_warnings(record=True, action="always") as told:
        assert open_store(tmp_path).manifest.classes == ("x",)
    assert "not from its class folders" in str(told[-1].message)


def test_kaggles_labels_beside_a_folder_are_used_for_the_files_in_it(tmp_path):
    rows = b"id,breed\n1,pug\n0,boxer\n9,pug\n"
    write_files(tmp_path, {"train/0.jpg": b"zero", "train/1.jpg": b"one", "train/2.jpg": b"two", "labels.csv": rows})
    with warnings.catch_warnings(record=True, action="always") as told:
        store = open_store(tmp_path / "train")
    notes = " ".join(str(one.message) for one in told)
    assert "1 rows of" in notes
    assert "1 pictures in" in notes
    assert [store.read(i) for i in range(2)] == [b"one", b"zero"]
    assert [store.manifest.classes[i] for i in store.manifest.labels] == ["pug", "boxer"]


def test_a_listing_beside_a_folder_is_noticed_though_the_folder_is_as_before(tmp_path):
    write_files(tmp_path / "train", {"0.jpg": b"zero"})
    settle(tmp_path)
    assert open_store(tmp_path / "train").kind == "folder"
    write_files(tmp_path, {"labels.csv": b"path,label\ntrain/0.jpg,7\n"})
    with pytest.warns(UserWarning, match="labels and columns"):
        assert open_store(tmp_path / "train").manifest.labels.tolist() == [7]


def test_a_listing_beside_class_folders_is_left_alone_and_said(tmp_path):
    write_files(tmp_path, {"train/a/0.jpg": b"0", "labels.csv": b"path,label\ntrain/a/0.jpg,7\n"})
    with pytest.warns(UserWarning, match=r"is not used for .* since the folder has class folders"):
        assert open_store(tmp_path / "train").manifest.classes == ("a",)
    with warnings.catch_warnings(record=True, action="always") as told:
        assert open_store(f"{tmp_path / 'train'}?listing=labels.csv").manifest.labels.tolist() == [7]
    assert "not from its class folders" in str(told[-1].message)


def test_a_listing_that_was_of_no_use_is_looked_at_again_when_it_changes(tmp_path):
    write_files(tmp_path, {"train/0.jpg": b"0", "labels.csv": b"path,label\nother/0.jpg,7\n"})
    settle(tmp_path)
    with pytest.warns(UserWarning, match="since it names none of its files"):
        assert open_store(tmp_path / "train").manifest.labels is None
    with pytest.raises(StoreError, match=r"labels\.csv names no file in"):
        open_store(f"{tmp_path / 'train'}?listing=labels.csv")
    write_files(tmp_path, {"labels.csv": b"path,label\ntrain/0.jpg,8\n"})
    with pytest.warns(UserWarning, match="labels and columns"):
        assert open_store(tmp_path / "train").manifest.labels.tolist() == [8]


def test_several_listings_in_one_folder_are_a_question(tmp_path):
    write_files(tmp_path, {"0.jpg": b"0", "labels.csv": b"path\n0.jpg\n", "metadata.csv": b"path,label\n0.jpg,3\n"})
    with pytest.raises(
        ConfigError, match=r"several listings: metadata.csv, labels.csv; write .*\?listing=metadata.csv"
    ):
        open_store(tmp_path)
    with pytest.warns(UserWarning, match="metadata.csv"):
        assert open_store(f"{tmp_path}?listing=metadata.csv").manifest.labels.tolist() == [3]


def test_options_that_are_wrong_or_for_another_kind(tmp_path):
    path = _write(tmp_path, ".csv")
    for text, message in [
        (f"{path}?wher=x", "there is no option 'wher'; choose from where, path"),
        (f"{path}?where=", "option 'where' is empty"),
        (f"{path}?label=a&label=b", "option 'label' is given twice"),
        (f"{path}?files=.wav", "option 'files' does not apply to a listing"),
        (f"{path}?label=nope", "no label column 'nope'"),
        (f"{tmp_path / 'img'}?path=x", "option 'path' does not apply to a folder"),
        (f"{tmp_path / 'img'}?files=wav", "expected file name endings such as .wav"),
    ]:
        with pytest.raises(ConfigError, match=message):
            open_store(text)
    with pytest.raises(StoreError, match="no row matches where=width > 1000"):
        open_store(f"{path}?where=width > 1000")


def test_where_selects_among_samples_of_every_kind(tmp_path):
    write_files(tmp_path, {f"{c}/{i}.jpg": picture(i) for c in "ab" for i in range(3)})
    store = open_store(f"{tmp_path}?where=label = 'b' and bytes > 10")
    assert store.manifest.ids.to_pylist() == ["b/1.jpg", "b/2.jpg"]
    assert [store.read(i) for i in range(2)] == [picture(1), picture(2)]
    assert store.manifest.labels.tolist() == [1, 1]
    with pytest.raises(StoreError, match="no sample matches where="):
        open_store(f"{tmp_path}?where=label = 'c'")


def test_a_file_of_that_very_name_comes_first(tmp_path):
    write_files(tmp_path / "a?files=x", {"0.jpg": b"0"})
    assert open_store(tmp_path / "a?files=x").read(0) == b"0"


def test_files_of_any_kind_in_a_folder(tmp_path):
    write_files(tmp_path, {"a/0.bin": b"zero", "a/x.npy": b"array", "b/1.raw": b"one", "b/.hidden": b"?"})
    with pytest.raises(StoreError, match=r"\?files=\.\w+ would use the 1 \.\w+ files there"):
        open_store(tmp_path)
    some = open_store(f"{tmp_path}?files=.bin,.raw")
    assert [some.read(i) for i in range(2)] == [b"zero", b"one"]
    assert some.manifest.labels.tolist() == [0, 1]
    assert open_store(f"{tmp_path}?files=any").manifest.ids.to_pylist() == ["a/0.bin", "a/x.npy", "b/1.raw"]


def test_files_of_any_kind_in_a_listing(tmp_path):
    path = _csv(tmp_path, "audio,label\ns/0.wav,1\n", files={"s/0.wav": b"RIFF"})
    assert open_store(path).read(0) == b"RIFF"


def test_a_file_that_grows_after_it_was_listed_is_not_read(tmp_path):
    store = open_store(_csv(tmp_path, "path\nimg/0.jpg\n"))
    (tmp_path / "img/0.jpg").write_bytes(b"something longer than before")
    with pytest.raises(StoreError, match="has 28 bytes, but had"):
        store.read(0)


def test_a_listing_in_a_linked_folder(tmp_path):
    path = _csv(tmp_path / "real", "path\nimg/0.jpg\n")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert open_store(tmp_path / "link" / path.name).read(0) == picture(0)


UNKNOWN = {
    "a day before the calendar": pa.array([-(2**63)] * 6, pa.timestamp("ns", "UTC")),
    "a zone that nobody knows": pa.array([0] * 6, pa.timestamp("ns", "Nowhere/City")),
    "half a microsecond": pa.array([1] * 6, pa.time64("ns")),
    "a duration of ages": pa.array([2**62] * 6, pa.duration("s")),
    "texts that are not UTF-8": pa.Array.from_buffers(
        pa.string(), 6, [None, pa.py_buffer(np.arange(7, dtype=np.int32)), pa.py_buffer(b"\xff" * 6)]
    ),
}


@pytest.mark.parametrize("what", UNKNOWN)
@pytest.mark.parametrize("name", ["note", "label", "path"])
def test_values_that_python_cannot_hold_are_an_error_of_the_listing(tmp_path, what, name):
    write_files(tmp_path, FILES)
    pq.write_table(pa.table({"path": list(FILES), **{name: UNKNOWN[what]}}), tmp_path / "list.parquet")
    with pytest.raises((StoreError, ConfigError)):
        open_store(tmp_path / "list.parquet")
