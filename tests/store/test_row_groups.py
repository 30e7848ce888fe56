"""The cache of row groups: its bound, and threads that want the same."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from sophon.errors import ConfigError, StoreError
from sophon.store.row_groups import RowGroupCache


def _group(number: int, size: int = 1000) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array([bytes([number]) * size], pa.large_binary())])


def test_the_groups_used_last_are_kept_within_the_bound():
    decoded = []

    def get(number):
        return cache.get((0, number), lambda: decoded.append(number) or _group(number))

    cache = RowGroupCache(3 * _group(0).nbytes)
    for number in (0, 1, 2, 0, 3, 0, 1):
        assert get(number)[0].as_py() == bytes([number]) * 1000
        assert cache.held_bytes <= cache.limit_bytes
    assert decoded == [0, 1, 2, 3, 1]  # 1 was used least when 3 came
    cache.limit_bytes = _group(0).nbytes
    assert cache.held_bytes == _group(0).nbytes
    cache.limit_bytes = 0
    assert cache.held_bytes == 0
    assert get(1)[0].as_py() == b"\1" * 1000
    cache.clear()
    with pytest.raises(ConfigError, match="at least 0 bytes, got -1"):
        cache.limit_bytes = -1


def test_threads_that_want_the_same_group_wait_for_one_of_them():
    cache = RowGroupCache(10_000)
    started, go = threading.Event(), threading.Event()
    decoded = []

    def decode():
        started.set()
        assert go.wait(20)
        decoded.append(1)
        return _group(7)

    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(cache.get, (0, 0), decode)
        assert started.wait(20)
        others = [pool.submit(cache.get, (0, 0), decode) for _ in range(7)]
        assert cache.get((0, 1), lambda: _group(8))[0].as_py() == b"\x08" * 1000  # nobody waits for another group
        go.set()
        assert {future.result(20)[0].as_py() for future in [first, *others]} == {b"\7" * 1000}
    assert decoded == [1]


def test_an_error_reaches_all_who_wait_and_is_not_kept():
    cache = RowGroupCache(10_000)
    started, go = threading.Event(), threading.Event()

    def fail():
        started.set()
        assert go.wait(20)
        raise StoreError("no")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.get, (0, 0), fail)
        assert started.wait(20)
        second = pool.submit(cache.get, (0, 0), fail)
        go.set()
        for future in (first, second):
            with pytest.raises(StoreError, match="no"):
                future.result(20)
    assert cache.get((0, 0), lambda: _group(1))[0].as_py() == b"\1" * 1000
