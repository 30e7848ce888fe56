from functools import cache

import pytest

from sophon.bench.pictures import photo_folder
from sophon.bench.pictures.photo_folder import write_photos
from sophon.bench.pictures.photos import PhotoSource
from sophon.errors import ConfigError


@cache
def source(like, seed=0):
    return PhotoSource(like, seed)


@pytest.fixture(autouse=True)
def _one_source_for_all_tests(monkeypatch):
    monkeypatch.setattr(photo_folder, "PhotoSource", source)  # it takes a second to make and never changes


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.jpg"))}


def test_photos_are_spread_over_class_folders_and_are_those_of_the_source(tmp_path):
    calls = []
    written = write_photos(
        tmp_path / "a" / "b", "imagenet", 5, seed=3, classes=2, on_progress=lambda *n: calls.append(n)
    )
    found = files(tmp_path / "a" / "b")
    expected = [source("imagenet", 3).photo(i) for i in range(5)]
    assert found == {f"class_{i % 2:03d}/photo_{i:06d}.jpg": photo for i, photo in enumerate(expected)}
    assert calls == [(n, 5) for n in range(1, 6)]
    assert written.sizes_bytes == tuple(map(len, expected))
    assert written.write_s > 0


def test_no_classes_give_a_flat_folder(tmp_path):
    write_photos(tmp_path, "imagenet", 2, classes=0)
    assert sorted(files(tmp_path)) == ["photo_000000.jpg", "photo_000001.jpg"]


def test_a_later_run_replaces_the_photos_of_an_earlier_one_and_nothing_else(tmp_path):
    write_photos(tmp_path, "imagenet", 6, classes=3)
    (tmp_path / "class_002" / "mine.txt").write_text("keep")
    (tmp_path / "photo_000009.jpg").write_text("not yours")
    write_photos(tmp_path, "imagenet", 1, classes=1)
    assert sorted(files(tmp_path)) == ["class_000/photo_000000.jpg", "photo_000009.jpg"]
    assert (tmp_path / "class_002" / "mine.txt").read_text() == "keep"
    assert not (tmp_path / "class_001").exists()


def test_a_folder_with_other_files_is_refused_unless_forced(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match=r"did not write; try another folder, or --force"):
        write_photos(tmp_path, "imagenet", 1)
    write_photos(tmp_path, "imagenet", 1, force=True)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    assert len(files(tmp_path)) == 1


def test_a_damaged_record_does_not_make_a_folder_ours(tmp_path):
    (tmp_path / ".sophon-synth.json").write_text('{"like": "imagenet", "count": [1]}')
    with pytest.raises(ConfigError, match="did not write"):
        write_photos(tmp_path, "imagenet", 1)


def test_arguments_that_cannot_work_are_refused_before_anything_is_written(tmp_path):
    folder = tmp_path / "photos"
    with pytest.raises(ConfigError, match="expected 1 or more photos, got 0"):
        write_photos(folder, "imagenet", 0)
    with pytest.raises(ConfigError, match=r"expected 1 or more classes.*got -1"):
        write_photos(folder, "imagenet", 1, classes=-1)
    with pytest.raises(ConfigError, match="no photos like 'mnist'; choose from imagenet, openimages"):
        write_photos(folder, "mnist", 1)
    assert not folder.exists()


def test_a_file_in_the_place_of_the_folder_or_its_parent_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file; expected a folder"):
        write_photos(tmp_path / "file", "imagenet", 1)
    with pytest.raises(ConfigError, match=r"cannot write .*; try a folder of your own"):
        write_photos(tmp_path / "file" / "below", "imagenet", 1)
