"""A file is read whole, or not at all; beside what `os` reads."""

import os

import pytest

from sophon.store import folder, open_store
from tests.support.open_files import open_files

files = pytest.importorskip("sophon.store._files", reason="built without a compiler")


def _read_both(path, size):
    """Return what both functions give: the bytes, or None."""
    space = bytearray(size)
    into = bytes(space) if files.read_into(os.fsencode(path), memoryview(space)) else None
    found = files.read_bytes(os.fsencode(path), size)
    assert found == into
    return found


@pytest.mark.parametrize("size", [0, 1, 4096, 1_234_567])
def test_a_file_of_the_size_that_is_expected(tmp_path, size):
    path = tmp_path / "ä\udcff.jpg"
    path.write_bytes(os.urandom(size))
    assert _read_both(path, size) == path.read_bytes()
    link = tmp_path / "link.jpg"
    link.symlink_to(path)
    assert _read_both(link, size) == path.read_bytes()


def test_anything_else_is_not_read(tmp_path):
    (tmp_path / "file").write_bytes(b"123")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it: opening it would take for ever
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    for name in ("folder", "pipe", "broken", "nothing"):
        for size in (0, 3):
            assert _read_both(tmp_path / name, size) is None
    assert _read_both(tmp_path / "file", 2) is None
    assert _read_both(tmp_path / "file", 4) is None
    assert files.read_bytes(os.fsencode(tmp_path / "file") + b"\0.jpg", 3) is None


def test_no_file_stays_open(tmp_path):
    (tmp_path / "file").write_bytes(b"123")
    before = len(open_files())
    for size in (2, 3, 4) * 50:
        _read_both(tmp_path / "file", size)
    assert len(open_files()) == before


def test_memory_that_may_not_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"123")
    with pytest.raises((BufferError, ValueError)):
        files.read_into(os.fsencode(tmp_path / "file"), memoryview(b"456"))


def test_without_the_extension_the_same_is_read(tmp_path, monkeypatch):
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(bytes([number]) * (number + 1))
    store = open_store(str(tmp_path))
    sizes = store.manifest.sizes.tolist()

    def everything():
        space = memoryview(bytearray(sum(sizes)))
        return [store.read(index) for index in range(3)], store.read_run([0, 1, 2], space), bytes(space)

    with_it = everything()
    monkeypatch.setattr(folder, "files", None)
    assert everything() == with_it
