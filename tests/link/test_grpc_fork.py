"""What a forked child does with connections of its parent: nothing, or it would wait for threads that are not there."""

import ctypes
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyarrow import flight

import sophon
from sophon.link import grpc_fork
from tests.support.forking import ends_well
from tests.support.servers import RECIPE, make_images, serve
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
_PR_SET_NAME = 15  # of linux/prctl.h


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve(make_images(tmp_path_factory.mktemp("data") / "train", 8)) as running:
        yield running


@pytest.fixture
def _collects_when_told():
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def _drop(thing):
    """Lose something in a cycle, so that only the garbage collector frees it."""
    ring = [thing]
    ring.append(ring)


@pytest.mark.usefixtures("_collects_when_told")
@pytest.mark.parametrize("whose", ["ours", "somebody else's"])
@pytest.mark.matrix(every=2)
def test_the_garbage_of_a_parent_is_not_collected_in_its_child(server, monkeypatch, whose):
    monkeypatch.setattr(grpc_fork, "_LONGEST_WAIT_S", 0.1)  # not all connections are ours, and those stay
    dataset = sophon.RemoteDataset(server.url, RECIPE)
    request = dataset.samples.request(0, range(8))
    if whose == "ours":
        replies = iter(dataset.transport.fetch(request, 60))
        next(replies)
        _drop((dataset, replies))
        del replies
    else:
        client = flight.connect(f"grpc://127.0.0.1:{server.port}")
        _drop((client, client.do_get(flight.Ticket(request.to_bytes()))))
        del client
    del dataset
    assert ends_well(gc.collect)


@pytest.mark.usefixtures("_collects_when_told")
def test_a_stream_that_is_garbage_does_not_keep_a_child_from_connecting(server):
    dataset = sophon.RemoteDataset(server.url, RECIPE)
    client = flight.connect(f"grpc://127.0.0.1:{server.port}")
    _drop((client, client.do_get(flight.Ticket(dataset.samples.request(0, range(8)).to_bytes()))))
    del client
    assert ends_well(lambda: dataset[0])


@pytest.mark.parametrize("is_on", [True, False])
def test_the_garbage_collector_is_on_or_off_as_it_was(server, is_on):
    len(sophon.RemoteDataset(server.url, RECIPE))

    def child():
        assert gc.isenabled() == is_on
        _drop(Witness())
        gc.collect()
        assert Witness.collected, "what is the child's own is collected there"

    frozen = gc.get_freeze_count()
    if not is_on:
        gc.disable()
    try:
        assert ends_well(child)
        assert gc.isenabled() == is_on
        assert gc.get_freeze_count() == frozen
    finally:
        gc.enable()


class Witness:
    collected = False

    def __del__(self):
        Witness.collected = True


def _wait_as_grpc(started, is_over):
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"event_engine", 0, 0, 0)
    started.set()
    is_over.wait(HANG_S)


def _sees_grpc_while_others_end(looks):
    """Look for a thread of gRPC's while threads end that were started before it; return what was seen each time."""
    go, started, is_over = threading.Event(), threading.Event(), threading.Event()
    others = [threading.Thread(target=go.wait) for _ in range(6)]
    grpc = threading.Thread(target=_wait_as_grpc, args=(started, is_over))
    for thread in (*others, grpc):
        thread.start()
    assert started.wait(HANG_S)
    go.set()
    seen = [grpc_fork.grpc_threads() for _ in range(looks)]
    is_over.set()
    for thread in (*others, grpc):
        thread.join(HANG_S)
    return seen


def test_a_thread_that_ends_while_one_looks_hides_no_other(monkeypatch):
    with monkeypatch.context() as patch:
        # What the kernel tells then: its list stops at the thread that ends.
        stopped = [Path(f"/proc/self/task/{os.getpid()}")]
        patch.setattr(Path, "iterdir", lambda _: iter(stopped))
        patch.setattr(Path, "glob", lambda *_: iter([stopped[0] / "comm"]))
        is_over = threading.Event()
        other = threading.Thread(target=is_over.wait)
        other.start()
        found = grpc_fork.grpc_threads()
        is_over.set()
        other.join(HANG_S)
    assert found, "nobody knows who the others are"


@pytest.mark.slow
def test_threads_of_grpc_are_seen_whoever_ends_meanwhile():
    for _ in range(3000):
        assert all(_sees_grpc_while_others_end(12))


_STRANGER = """
import ctypes, threading, time
from sophon.link import grpc_fork
held = threading.Event()
def stay(name):
    ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
    held.wait()
threading.Thread(target=stay, args=(b"event_engine",), daemon=True).start()
while not grpc_fork.grpc_threads():
    time.sleep(0.01)
grpc_fork.look_around()
assert not grpc_fork.grpc_threads(), "it is another library's"
threading.Thread(target=stay, args=(b"grpc_later",), daemon=True).start()
while not grpc_fork.grpc_threads():
    time.sleep(0.01)
import pyarrow.flight
grpc_fork.look_around()
assert grpc_fork.grpc_threads(), "once Flight is loaded it may be ours"
"""


def test_threads_of_a_library_that_was_there_before_flight_are_not_waited_for():
    subprocess.run([sys.executable, "-c", _STRANGER], check=True, timeout=HANG_S)
