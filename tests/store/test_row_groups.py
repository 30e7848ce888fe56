"""The cache of row groups: its bound, and threads that want the same."""

import threading
from concurrent.futures import ThreadPoolExecutor

import cachetools
import pyarrow as pa
import pytest

from sophon.errors import ConfigError, StoreError
from sophon.store.row_groups import RowGroupCache
from tests.support.forks import fork_at_every_line
from tests.support.waiting import HANG_S


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


def test_a_group_that_is_larger_than_the_cache_leaves_the_others_in_it():
    cache = RowGroupCache(3 * _group(0).nbytes)
    kept = cache.get((0, 0), lambda: _group(0))
    assert len(cache.get((0, 1), lambda: _group(1, 10_000))) == 1
    assert cache.get((0, 0), lambda: pytest.fail("decoded again")) is kept


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_change_leaves_the_child_a_cache_that_works():
    groups = [_group(number) for number in range(4)]
    cache = RowGroupCache(2 * groups[0].nbytes)

    def get_all():
        for number in (0, 1, 2, 3, 2):
            assert cache.get((0, number), lambda number=number: groups[number]) is groups[number]
            assert cache.held_bytes <= cache.limit_bytes

    codes = fork_at_every_line(cachetools, get_all, get_all)
    assert len(codes) > 50
    assert set(codes) == {0}
    assert cache.held_bytes == cache.limit_bytes


def test_threads_that_want_the_same_group_wait_for_one_of_them():
    cache = RowGroupCache(10_000)
    started, go = threading.Event(), threading.Event()
    decoded = []

    def decode():
        started.set()
        assert go.wait(HANG_S)
        decoded.append(1)
        return _group(7)

    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(cache.get, (0, 0), decode)
        assert started.wait(HANG_S)
        others = [pool.submit(cache.get, (0, 0), decode) for _ in range(7)]
        assert cache.get((0, 1), lambda: _group(8))[0].as_py() == b"\x08" * 1000  # nobody waits for another group
        go.set()
        assert {future.result(HANG_S)[0].as_py() for future in [first, *others]} == {b"\7" * 1000}
    assert decoded == [1]


def test_an_error_reaches_all_who_wait_and_is_not_kept():
    cache = RowGroupCache(10_000)
    started, go = threading.Event(), threading.Event()

    def fail():
        started.set()
        assert go.wait(HANG_S)
        raise StoreError("no")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.get, (0, 0), fail)
        assert started.wait(HANG_S)
        second = pool.submit(cache.get, (0, 0), fail)
        go.set()
        for future in (first, second):
            with pytest.raises(StoreError, match="no"):
                future.result(HANG_S)
    assert cache.get((0, 0), lambda: _group(1))[0].as_py() == b"\1" * 1000
