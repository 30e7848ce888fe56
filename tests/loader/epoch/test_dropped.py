"""Iterators that nobody closes: the garbage collector does, in any thread, at any moment."""

import collections
import gc
import threading
import time
from dataclasses import dataclass

import pytest

import sophon
from sophon.link import grpc_fork as fork
from sophon.pipeline import Pipeline
from tests.support.servers import RECIPE, make_images, serve
from tests.support.tensor_op import SeesSamples
from tests.support.waiting import HANG_S


class _Collects(collections.Counter):
    """Counts, and lets the collector strike while it does."""

    def __getitem__(self, name):
        gc.collect()
        return super().__getitem__(name)


@dataclass(frozen=True)
class Dozes(SeesSamples):
    """Keeps a worker at work for a while."""

    def apply(self, value, params):  # noqa: ARG002 - part of the contract
        time.sleep(0.2)
        return value


@pytest.fixture
def _collects_when_told():
    gc.disable()
    gc.freeze()  # all that is older, so that each collection is quick
    yield
    gc.unfreeze()
    gc.enable()


def _drop(iterator):
    """Begin with an iterator and lose it, so that only the collector finds it."""
    next(iterator)
    ring = [iterator]
    ring.append(ring)


@pytest.mark.usefixtures("_collects_when_told")
def test_a_dropped_iterator_may_be_collected_while_its_loader_counts(tmp_path):
    loader = sophon.DataLoader(make_images(tmp_path / "images", 40), RECIPE, batch_size=4, num_workers=2)
    _drop(iter(loader))
    loader.stats.cuts = _Collects(loader.stats.cuts)
    assert len(list(loader)) == 10


@pytest.mark.usefixtures("_collects_when_told")
def test_nobody_waits_for_the_workers_of_a_dropped_iterator_while_they_wait_for_the_counts(tmp_path):
    pipeline = Pipeline([*RECIPE.ops, Dozes()])
    loader = sophon.DataLoader(make_images(tmp_path / "images", 40), pipeline, batch_size=4, num_workers=2)
    _drop(iter(loader))
    loader.stats.cuts = _Collects(loader.stats.cuts)
    start_s = time.monotonic()
    next(iter(loader))
    assert time.monotonic() - start_s < HANG_S


@pytest.mark.usefixtures("_collects_when_told")
@pytest.mark.parametrize("where", ["connection", "watch"])
def test_a_dropped_fetch_may_be_collected_while_its_connection_is_taken(tmp_path, monkeypatch, where):
    def collecting(call):
        def collect(*told):
            gc.collect()
            return call(*told)

        return collect

    with serve(make_images(tmp_path / "images", 40)) as server:
        dataset = sophon.RemoteDataset(server.url, RECIPE)
        _drop(iter(dataset.transport.fetch(dataset.samples.request(0, range(40)), 30)))
        if where == "connection":
            monkeypatch.setattr(fork, "grpc_is_usable", collecting(fork.grpc_is_usable))
        else:
            dataset.transport.watch._thread = None  # it has just ended, since there was nothing to watch over
            monkeypatch.setattr(threading, "Event", collecting(threading.Event))
        assert len(dataset[0]) == 2
