"""What holds training back where nothing is planned."""

import pytest

from sophon.codec import RAW
from sophon.link.transport import Fetch
from sophon.link.wire import Reply, StreamClock
from sophon.loader.account.stats import Stats
from sophon.loader.planning import watch as watching
from sophon.loader.planning.watch import Watch


class Told(Fetch):
    def __iter__(self):
        return iter(())


def _watched(monkeypatch, *, is_remote, reads, stats, computes=0.0):
    """Let a second of a stream pass in which a hundred samples come, and return the verdict."""
    now = [0.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])
    watch, fetch = Watch(is_remote, 2.0, stats, False), Told()
    watch.began(1)
    for _ in range(101):
        now[0] += 0.01
        fetch.clock = fetch.clock + StreamClock(reading_s=0.01 * reads, computing_s=0.01 * computes)
        watch.received(1, 0, Reply(0, payload=bytes(20_000)), RAW, fetch)
    watch.ended(1)
    return watch.verdict()


def _stats(**counts):
    return Stats(**{"samples": 100, "link_bytes": 2_000_000, "finish_cpu_s": 0.1, "consumer_s": 0.01, **counts})


@pytest.mark.parametrize("is_remote", [True, False])
def test_a_store_that_is_waited_for_binds(monkeypatch, is_remote):
    verdict = _watched(monkeypatch, is_remote=is_remote, reads=0.95, stats=_stats())
    assert verdict.bound == "store-bound"
    assert verdict.store_per_s == pytest.approx(100, rel=0.02)
    assert verdict.cpu_per_s == pytest.approx(2000)
    assert verdict.io_per_s > 1000


def test_a_link_that_is_full_binds_and_the_store_is_not_known(monkeypatch):
    verdict = _watched(monkeypatch, is_remote=True, reads=0.1, stats=_stats())
    assert verdict.bound == "I/O-bound"
    assert verdict.io_per_s == pytest.approx(100, rel=0.02)
    assert verdict.to_json()["store_per_s"] is None


def test_a_storage_node_whose_cores_are_waited_for_binds(monkeypatch):
    verdict = _watched(monkeypatch, is_remote=True, reads=0.02, computes=0.95, stats=_stats())
    assert verdict.bound == "storage-CPU-bound"
    assert verdict.storage_per_s == pytest.approx(100, rel=0.02)
    assert verdict.io_per_s > 1000
    assert "more cores" in verdict.explain()
    assert verdict.slowest == "storage node's CPU"


def test_cores_that_keep_up_are_not_worth_a_word(monkeypatch):
    verdict = _watched(monkeypatch, is_remote=True, reads=0.0, computes=0.2, stats=_stats())
    assert verdict.bound == "I/O-bound"
    assert "storage" not in verdict.rates()
    assert verdict.to_json()["storage_per_s"] is None


def test_workers_that_are_slower_than_the_store_bind(monkeypatch):
    verdict = _watched(monkeypatch, is_remote=False, reads=1.0, stats=_stats(finish_cpu_s=10.0))
    assert verdict.bound == "CPU-bound"
    assert verdict.factor == pytest.approx(5.0, rel=0.05)


def test_before_the_first_sample_there_is_no_verdict():
    assert Watch(True, 1.0, Stats(), False).verdict() is None
