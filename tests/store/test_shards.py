"""Shards: which files they are, and how they are kept open."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import cachetools
import numpy as np
import pytest

from sophon.store.shards import ShardFiles, find_shards, pread, shard_sources
from tests.store.datasets import open_files, write_files
from tests.support.forks import fork_at_every_line
from tests.support.waiting import HANG_S


def test_a_file_a_folder_and_a_pattern_name_shards(tmp_path):
    names = ["b.tar", "a-10.tar", "a-9.tar", "C.TAR", ".x.tar", "notes.txt"]
    write_files(tmp_path, dict.fromkeys(names, b""))
    (tmp_path / "folder.tar").mkdir()
    assert find_shards(tmp_path, ".tar") == (tmp_path, ["C.TAR", "a-10.tar", "a-9.tar", "b.tar"])
    assert find_shards(tmp_path / "b.tar", ".tar") == (tmp_path, ["b.tar"])
    assert find_shards(tmp_path / "a-*.tar", ".tar") == (tmp_path, ["a-10.tar", "a-9.tar"])
    assert find_shards(tmp_path / "a-?.tar", ".tar") == (tmp_path, ["a-9.tar"])
    assert find_shards(tmp_path / "z*.tar", ".tar") == (tmp_path, [])


def test_pread_goes_on_where_the_system_gives_less_than_asked_for(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(bytes(range(200)))
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: real(fd, min(size, 7), offset))
    fd = os.open(path, os.O_RDONLY)
    try:
        assert pread(fd, 10, 100) == bytes(range(10, 110))
        assert pread(fd, 150, 100) == bytes(range(150, 200))
        assert (pread(fd, 200, 10), pread(fd, 0, 0)) == (b"", b"")
    finally:
        os.close(fd)


def test_a_file_that_is_being_read_is_not_closed_under_the_reader(tmp_path):
    names = [str(i) for i in range(20)]
    write_files(tmp_path, {name: bytes([int(name)]) * 5000 for name in names})
    before = open_files()
    files = ShardFiles(tmp_path, shard_sources(tmp_path, names), max_open=2)
    start = threading.Barrier(8)

    def read(seed):
        start.wait(HANG_S)
        for shard in np.random.default_rng(seed).integers(0, 20, 300).tolist():
            assert files.pread(shard, 100, 4000) == bytes([shard]) * 4000
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))
    assert open_files() - before <= 2
    files.close()
    assert open_files() == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_change_leaves_the_child_a_table_that_works(tmp_path):
    names = [str(i) for i in range(4)]
    write_files(tmp_path, {name: name.encode() * 50 for name in names})
    files = ShardFiles(tmp_path, shard_sources(tmp_path, names), max_open=2)

    def read_all():
        for shard in (0, 1, 2, 3, 2):
            assert files.pread(shard, 10, 20) == names[shard].encode() * 20
            assert len(files._open) <= 2

    codes = fork_at_every_line(cachetools, read_all, read_all)
    assert len(codes) > 50
    assert set(codes) == {0}
    files.close()


def test_a_shard_that_was_replaced_is_noticed_while_it_is_open(tmp_path):
    write_files(tmp_path, {"x": b"12345"})
    files = ShardFiles(tmp_path, shard_sources(tmp_path, ["x"]))
    assert files.pread(0, 1, 3) == b"234"
    (tmp_path / "x").write_bytes(b"123456")
    with pytest.raises(OSError, match="the shard was changed after it was listed"):
        files.pread(0, 1, 3)
