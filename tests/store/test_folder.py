"""Image folders: torchvision's order and labels, links, odd names, and files that change under the store."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sophon.errors import StoreError
from sophon.store import IMAGE_SUFFIXES, FolderStore, open_store
from tests.store.datasets import make, picture, write_files
from tests.support.torchvision_import import import_torchvision

torchvision = import_torchvision()
ImageFolder = torchvision.datasets.ImageFolder

# Characters that sort on both sides of the slash, capitals, and letters beyond ASCII and beyond 16 bits.
parts = st.text(alphabet="aB-.0 é\uffee🙂", min_size=1, max_size=3).filter(lambda part: part not in (".", ".."))
names = st.builds("{}{}".format, parts, st.sampled_from([".jpg", ".JPG", ".webp", ".tiff", ".txt", "", ".jpg.txt"]))
trees = st.lists(st.tuples(st.lists(parts, max_size=3), names), min_size=1, max_size=14)


def _assert_like_torchvision(root: Path) -> None:
    expected = ImageFolder(str(root))
    manifest = FolderStore.scan(root)
    paths = [os.fsencode(os.path.relpath(path, root)) for path, _ in expected.samples]
    assert [i.encode() for i in manifest.ids.to_pylist()] == paths
    assert manifest.labels.tolist() == expected.targets
    assert list(manifest.classes) == expected.classes
    assert {name: i for i, name in enumerate(manifest.classes)} == expected.class_to_idx
    assert manifest.sizes.tolist() == [Path(path).stat().st_size for path, _ in expected.samples]


def test_extensions_are_torchvisions():
    assert IMAGE_SUFFIXES == torchvision.datasets.folder.IMG_EXTENSIONS


@given(tree=trees)
@settings(max_examples=150, deadline=None)
def test_any_tree_is_listed_as_torchvision_lists_it(tree):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        root.mkdir()
        for number, (folders, name) in enumerate(tree):
            try:
                write_files(root, {"/".join([*folders, name]): picture(number)})
            except OSError:
                assume(False)  # a file where a folder should be
        try:
            expected = ImageFolder(str(root))
        except FileNotFoundError:
            expected = None
        if expected is not None:
            _assert_like_torchvision(root)
            return
        # torchvision refuses empty classes, and folders without classes, which are flat data sets here.
        flat = sorted(p.name for p in root.iterdir() if p.is_file() and p.name.lower().endswith(IMAGE_SUFFIXES))
        if flat and not any(p.is_file() and p.name.lower().endswith(IMAGE_SUFFIXES) for p in root.glob("*/**/*")):
            assert FolderStore.scan(root).ids.to_pylist() == flat
        else:
            with pytest.raises(StoreError, match="no picture"):
                FolderStore.scan(root)


def test_nested_folders_sort_by_their_whole_path_as_in_torchvision(tmp_path):
    write_files(
        tmp_path,
        {
            f"{name}.jpg": b"x"
            for name in ("c/z", "c/b/1", "c/b-c/1", "c/b/a/1", "c/a", "C/1", "b0/1", "b/é", "b/Z", "b/a")
        },
    )
    _assert_like_torchvision(tmp_path)


def test_links_to_files_and_folders_are_followed_as_torchvision_does(tmp_path):
    outside = write_files(tmp_path / "outside", {"1.jpg": b"one", "deep/2.png": b"two"})
    root = write_files(tmp_path / "root", {"a/0.jpg": b"zero", "b/3.jpg": b"three"})
    (root / "a/linked").symlink_to(outside)
    (root / "b/4.jpg").symlink_to(outside / "1.jpg")
    (root / "c").symlink_to(outside / "deep")
    _assert_like_torchvision(root)
    with open_store(root) as store:
        data = {store.manifest.ids[i].as_py(): store.read(i) for i in range(len(store))}
    assert data == {
        "a/0.jpg": b"zero",
        "a/linked/1.jpg": b"one",
        "a/linked/deep/2.png": b"two",
        "b/3.jpg": b"three",
        "b/4.jpg": b"one",
        "c/2.png": b"two",
    }


@pytest.mark.parametrize("target", [".", "..", "../..", "/", "../b"])
def test_links_that_go_round_in_circles_are_left_out(tmp_path, target):
    root = write_files(tmp_path / "root", {"a/1.jpg": b"1", "a/deep/2.jpg": b"2", "b/3.jpg": b"3"})
    (root / "a/loop").symlink_to(target)
    if target == "../b":
        (root / "b/loop").symlink_to("../a")  # from a to b to a
    with pytest.warns(UserWarning, match="links in .* form loops"):
        store = open_store(root)
    ids = store.manifest.ids.to_pylist()
    assert [i for i in ids if "loop" not in i] == ["a/1.jpg", "a/deep/2.jpg", "b/3.jpg"]
    assert len(ids) == (6 if target == "../b" else 3)


def test_links_across_that_make_endless_paths_are_bounded(tmp_path):
    # Every level has two links to the next one: 2^30 paths without a single circle.
    levels = tmp_path / "levels"
    for level in range(30):
        folder = levels / str(level)
        folder.mkdir(parents=True)
        for name in "xy":
            (folder / name).symlink_to(levels / str(level + 1))
    write_files(levels / "30", {"1.jpg": b"1"})
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").symlink_to(levels / "0")
    with pytest.warns(UserWarning, match="form loops"):
        store = open_store(root)
    assert 1 <= len(store) <= 8


def test_a_link_to_itself_and_a_link_to_nothing_are_listed_as_torchvision_does_and_fail_when_read(tmp_path):
    root = write_files(tmp_path / "root", {"a/2.jpg": b"2"})
    (root / "a/1.jpg").symlink_to("nothing")
    (root / "a/3.jpg").symlink_to("3.jpg")
    assert [Path(path).name for path, _ in ImageFolder(str(root)).samples] == ["1.jpg", "2.jpg", "3.jpg"]
    with pytest.warns(UserWarning, match="2 pictures in .* are broken links"):
        store = open_store(root)
    assert store.manifest.ids.to_pylist() == ["a/1.jpg", "a/2.jpg", "a/3.jpg"]
    assert store.read(1) == b"2"
    for index in (0, 2):
        with pytest.raises(StoreError, match=rf"sample {index} \('a/{index + 1}.jpg'\): its file"):
            store.read(index)


def test_a_flat_folder_has_no_labels(tmp_path):
    write_files(tmp_path, {f"{name}.jpg": name.encode() for name in ("10", "9", "B", "a", "é")} | {"notes.txt": b""})
    store = open_store(tmp_path)
    assert store.manifest.ids.to_pylist() == ["10.jpg", "9.jpg", "B.jpg", "a.jpg", "é.jpg"]
    assert (store.manifest.labels, store.manifest.classes) == (None, ())
    assert [store.read(i).decode() for i in range(5)] == ["10", "9", "B", "a", "é"]


def test_folders_without_pictures_beside_pictures_are_not_classes(tmp_path):
    write_files(tmp_path, {"1.jpg": b"1", ".cache/x/y.txt": b""})
    assert open_store(tmp_path).manifest.labels is None


def test_pictures_beside_class_folders_are_left_out_and_counted(tmp_path):
    write_files(tmp_path, {"1.jpg": b"1", "2.jpg": b"2", "a/3.jpg": b"3"})
    with pytest.warns(UserWarning, match=r"2 pictures next to the class folders of .* are left out"):
        store = open_store(tmp_path)
    assert store.manifest.ids.to_pylist() == ["a/3.jpg"]


def test_an_empty_class_is_refused_as_it_would_shift_the_labels(tmp_path):
    write_files(tmp_path, {"a/1.jpg": b"1", ".checkpoints/x.txt": b""})
    with pytest.raises(FileNotFoundError):
        ImageFolder(str(tmp_path))
    with pytest.raises(
        StoreError, match=r"no picture in 1 of 2 class folders \('\.checkpoints'\); remove those folders"
    ):
        open_store(tmp_path)


def test_names_that_are_not_utf8_are_shown_escaped_and_can_be_read(tmp_path):
    root = write_files(tmp_path, {"a/1.jpg": b"plain"})
    odd = {b"\xff.jpg": b"odd", b"\xc3\xa9.jpg": b"fine", b"\xed\xb2\x80.jpg": b"surrogate"}
    for name, data in odd.items():
        (root / "a" / os.fsdecode(name)).write_bytes(data)
    store = open_store(root)
    order = [os.fsencode(Path(path).name) for path, _ in ImageFolder(str(root)).samples]
    assert [store.read(i) for i in range(4)] == [({b"1.jpg": b"plain"} | odd)[name] for name in order]
    assert "a/\\xff.jpg" in store.manifest.ids.to_pylist()
    assert open_store(root).manifest.fingerprint == store.manifest.fingerprint


def test_a_class_whose_name_is_not_utf8_is_one_too(tmp_path):
    folder = tmp_path / os.fsdecode(b"\xfe")
    write_files(folder, {"1.jpg": b"1"})
    store = open_store(tmp_path)
    assert (store.manifest.classes, store.read(0)) == ((os.fsdecode(b"\xfe"),), b"1")


def test_progress_counts_up_to_the_number_of_samples(tmp_path, monkeypatch):
    monkeypatch.setattr("sophon.store.folder._CHUNK", 3)
    seen = []
    store = open_store(make("folder", tmp_path), on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(3, None), (4, None), (7, None), (8, None), (10, None)]
    assert [store.read(i) for i in range(10)] == [picture(i) for i in range(10)]
    assert np.array_equal(store.manifest.labels, np.arange(10) // 4)


def _one(tmp_path: Path) -> tuple[FolderStore, Path]:
    return open_store(write_files(tmp_path, {"a/1.jpg": b"12345"})), tmp_path / "a/1.jpg"


def test_a_deleted_file_is_named(tmp_path):
    store, file = _one(tmp_path)
    file.unlink()
    with pytest.raises(StoreError, match=r"sample 0 \('a/1.jpg'\): its file no longer exists\. Put it back"):
        store.read(0)
    file.write_bytes(b"12345")
    assert store.read(0) == b"12345"


@pytest.mark.parametrize("content", [b"", b"1234", b"123456"])
def test_a_file_of_another_size_is_refused(tmp_path, content):
    store, file = _one(tmp_path)
    file.write_bytes(content)
    with pytest.raises(StoreError, match=rf"has {len(content)} bytes, but had 5 when it was listed\. Run `touch "):
        store.read(0)


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path):
    store, file = _one(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(StoreError, match=r"'a/1.jpg'.*not a regular file"):
        store.read(0)


def test_a_pipe_in_the_place_of_a_file_does_not_block(tmp_path):
    store, file = _one(tmp_path)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(StoreError, match="not a regular file"):
        store.read(0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_and_folders_that_may_not_be_read_are_named(tmp_path):
    store, file = _one(tmp_path)
    file.chmod(0)
    with pytest.raises(StoreError, match=r"'a/1.jpg'.*Permission denied"):
        store.read(0)
    file.parent.chmod(0)
    try:
        with pytest.raises(StoreError, match=r"cannot list .*a: PermissionError"):
            FolderStore.scan(tmp_path)
    finally:
        file.parent.chmod(0o700)


def test_shards_deeper_down_are_pointed_at(tmp_path):
    write_files(tmp_path, {"data/x.parquet": b"", "data/y.parquet": b"", "README.md": b""})
    with pytest.raises(StoreError, match=r"there are 2 \.tar or \.parquet files below it; open the folder"):
        open_store(tmp_path)
