"""What every store promises: typed errors, threads, forks, spawned processes, nothing left open."""

import multiprocessing
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sophon.errors import StoreError
from sophon.store import open_store
from tests.store.datasets import SINGLE, make, open_files, picture
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
PICTURES = [picture(i) for i in range(10)]


@pytest.fixture(params=SINGLE)
def store(request, tmp_path):
    with open_store(make(request.param, tmp_path / "data")) as opened:
        yield opened


def test_every_sample_is_read_by_its_index(store):
    assert [store.read(i) for i in range(10)] == PICTURES
    assert store.read(np.int64(3)) == PICTURES[3]
    assert store.manifest.sizes.tolist() == [len(data) for data in PICTURES]
    assert store.manifest.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]


def test_samples_are_read_side_by_side_into_memory_of_the_caller(store):
    space = bytearray(b"?" * (sum(map(len, PICTURES)) + 1))
    at = 0
    for index, data in enumerate(PICTURES):
        store.read_into(index, memoryview(space)[at : at + len(data)])
        at += len(data)
    assert space == b"".join(PICTURES) + b"?"


def test_memory_of_another_size_and_samples_that_do_not_exist_are_refused(store):
    with pytest.raises(ValueError, match="expected memory for"):
        store.read_into(3, memoryview(bytearray(len(PICTURES[3]) + 1)))
    with pytest.raises(StoreError, match="has samples 0 … 9, got index 10"):
        store.read_into(10, memoryview(bytearray(1)))
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.read_into(0, memoryview(bytearray(len(PICTURES[0]))))


def test_data_that_changed_are_no_sample_read_into_memory_either(store):
    for path in store.path.parent.rglob("*"):
        if path.is_file() and path.suffix != ".csv":  # the files, and not the list of them
            os.truncate(path, path.stat().st_size // 2)
    for index, data in enumerate(PICTURES):
        with pytest.raises(StoreError):
            store.read(index)
        with pytest.raises(StoreError):
            store.read_into(index, memoryview(bytearray(len(data))))


@pytest.mark.parametrize("index", [-1, 10, 10**30])
def test_an_index_out_of_range_is_a_store_error(store, index):
    with pytest.raises(StoreError, match=rf"data set 'data' has samples 0 … 9, got index {index}"):
        store.read(index)


def test_a_closed_store_says_so(store):
    store.read(0)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="data set 'data' is closed; open it again"):
        store.read(0)


def test_threads_read_at_once(store):
    indexes = np.random.default_rng(0).integers(0, 10, 400).tolist()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(store.read, indexes)) == [PICTURES[i] for i in indexes]


def test_nothing_is_left_open(store):
    store.read(0)
    store.close()
    before = open_files()
    for _ in range(3):
        with open_store(store.path) as again:
            assert [again.read(i) for i in range(10)] == PICTURES
    assert open_files() == before


def test_a_store_that_is_dropped_without_closing_leaves_nothing_open(store):
    before = open_files()
    again = open_store(store.path)
    again.read(0)
    del again
    assert open_files() == before


def _child(store) -> int:
    """Read everything in a forked child; return its exit code, or -1 if it hangs."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with ThreadPoolExecutor(2) as pool:
                code = 0 if list(pool.map(store.read, range(10))) == PICTURES else 2
        finally:
            os._exit(code)
    timer = threading.Timer(20, os.kill, (pid, 9))
    timer.start()
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        timer.cancel()


@pytest.mark.matrix(every=4)
def test_a_forked_child_reads_while_the_parent_does(store):
    stop = threading.Event()

    def read_on():
        while not stop.is_set():
            for index in range(10):
                assert store.read(index) == PICTURES[index]

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read_on) for _ in range(2)]
        try:
            assert [_child(store) for _ in range(8)] == [0] * 8
        finally:
            stop.set()
        for reader in readers:
            reader.result(HANG_S)


def test_a_lock_that_is_held_during_a_fork_does_not_stop_the_child(store):
    holder = getattr(store, "_files", None) if store.kind == "tar" else getattr(store, "_cache", None)
    if holder is None:
        assert store.kind in ("folder", "listing")  # have no lock
        return
    with holder._lock:
        assert _child(store) == 0


def _read_all(store) -> bool:
    return [store.read(i) for i in range(10)] == PICTURES


def test_a_store_goes_to_a_spawned_process_with_its_manifest(store):
    store.read(0)
    if store.kind == "parquet":
        store.cache_bytes = 12_345
    copy = pickle.loads(pickle.dumps(store))
    assert (copy.name, copy.path, copy.manifest.fingerprint) == (store.name, store.path, store.manifest.fingerprint)
    assert getattr(copy, "cache_bytes", 0) == getattr(store, "cache_bytes", 0)
    assert _read_all(copy)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_process_reads_the_same(tmp_path, method):
    # One kind is enough for the way a process starts; the test above has them all.
    store = open_store(make("tar", tmp_path / "data"))
    store.read(0)
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(_read_all, (store,))
    assert _read_all(store)
