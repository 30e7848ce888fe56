"""A file is read whole, or not at all; beside what `os` reads."""

import os

import numpy as np
import pytest

from sophon.store import folder, open_store
from tests.support.open_files import open_files
from tests.support.waiting import HANG_S

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


def _run(root, names, sizes, space):
    """Read files by their names; return how many were read."""
    text = "".join(names).encode()
    starts = np.concatenate([[0], np.cumsum([len(name.encode()) for name in names])]).astype(np.int64)
    data = np.frombuffer(text, np.uint8)
    space = memoryview(space)
    found, seconds = files.read_run(os.fsencode(root), starts[:-1], starts[1:], data, np.array(sizes, np.int64), space)
    assert 0 <= seconds < HANG_S
    return found


def test_a_run_of_files_lies_side_by_side_as_os_reads_them(tmp_path):
    names, sizes = ["a.jpg", "ü/b.jpg", "c.jpg"], [1, 70_000, 4096]
    (tmp_path / "ü").mkdir()
    for name, size in zip(names, sizes, strict=True):
        (tmp_path / name).write_bytes(os.urandom(size))
    space = bytearray(sum(sizes))
    assert _run(f"{tmp_path}/", names, sizes, space) == 3
    assert bytes(space) == b"".join((tmp_path / name).read_bytes() for name in names)
    nothing = np.zeros(0, np.int64)
    assert files.read_run(b"/", nothing, nothing, np.zeros(0, np.uint8), nothing, space) == (0, 0.0)


@pytest.mark.parametrize("wrong", ["nothing", "folder", "pipe", "shorter", "longer", "a\0.jpg", "x" * 5000, ""])
def test_a_run_ends_before_the_first_file_that_is_not_as_expected(tmp_path, wrong):
    for name, size in {"a": 3, "shorter": 2, "longer": 4}.items():
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = len(open_files())
    space = bytearray(9)
    assert _run(f"{tmp_path}/", ["a", wrong, "a"], [3, 3, 3], space) == 1
    assert len(open_files()) == before


def test_a_run_never_leaves_the_memory_that_it_is_given(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    space = bytearray(5)
    assert _run(f"{tmp_path}/", ["a", "a"], [3, 3], space) == 1
    assert _run(f"{tmp_path}/", ["a"], [-1], space) == 0
    first, beyond, size = np.zeros(1, np.int64), np.full(1, 9, np.int64), np.full(1, 3, np.int64)
    root, name = os.fsencode(f"{tmp_path}/"), np.frombuffer(b"a", np.uint8)
    assert files.read_run(root, first, first + 1, name, size, space)[0] == 1
    for start, end in ((first, beyond), (first - 1, first + 1), (first + 1, first), (beyond, beyond + 1)):
        assert files.read_run(root, start, end, name, size, space)[0] == 0
    with pytest.raises(ValueError, match="2 starts and ends"):
        files.read_run(b"", first, np.zeros(2, np.int64), name, np.ones(2, np.int64), space)


def test_a_store_reads_the_same_run_with_the_extension_and_without_whatever_is_missing(tmp_path, monkeypatch):
    for number in range(6):
        (tmp_path / f"{number}.jpg").write_bytes(os.urandom(1000 + number))
    (tmp_path / "5.jpg").write_bytes(b"")
    store = open_store(tmp_path)
    for number in (0, 3):
        (tmp_path / f"{number}.jpg").unlink()
    order = [5, 0, 4, 3, 1, 2, 1]

    def read():
        space = bytearray(sum(int(store.manifest.sizes[number]) for number in order))
        ends, failed = store.read_run(order, memoryview(space))
        return ends, sorted(failed), bytes(space[: ends[-1]])

    found = read()
    assert found[1] == [1, 3]
    monkeypatch.setattr(folder, "files", None)
    assert read() == found
