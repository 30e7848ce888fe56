"""Several threads draw from one epoch: each batch goes to one of them, errors and the end to all."""

import threading
import time

import pytest

import sophon
from sophon.errors import ConfigError, OpError
from sophon.loader.order.log import Relaxed
from tests.support.python_process import run_python
from tests.support.servers import RECIPE, digest, make_images, serve
from tests.support.settings import grouped
from tests.support.waiting import HANG_S

COUNT, THREADS = 41, 4


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", COUNT)


def _loader(path, **options):
    options = {"shuffle": True, "seed": 5, "num_workers": 2, "policy": "none", "columns": ("id",)} | options
    return sophon.DataLoader(path, RECIPE, **grouped(batch_size=3, **options))


def _draw(batches, work=lambda who, batch: None, count=THREADS):  # noqa: ARG005 - part of the contract
    """Draw from batches in several threads; return what each has got, and the errors that reached it."""
    got, errors = [[] for _ in range(count)], [None] * count

    def consume(who):
        try:
            for batch in batches:
                got[who].append(batch)
                work(who, batch)
        except Exception as error:  # noqa: BLE001 - looked at by the test
            errors[who] = error

    threads = [threading.Thread(target=consume, args=(who,)) for who in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
        assert not thread.is_alive()
    return got, errors


def _names(parts):
    return sorted(name for part in parts for batch in part for name in batch[2]["id"])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 0},
        {"num_workers": "auto"},
        {"order": Relaxed(3)},
        {"kind": "processes"},
    ],
)
def test_each_batch_goes_to_exactly_one_of_four_threads(images, options):
    plain = list(_loader(images))
    loader = _loader(images, **options)
    everybody, has_drawn = threading.Barrier(THREADS), set()

    def work(who, _):
        if who not in has_drawn:
            has_drawn.add(who)
            everybody.wait(HANG_S)  # nobody takes a second one before all have one
        time.sleep(0.002 * who)  # some are slow

    got, errors = _draw(loader.shared(), work)
    assert errors == [None] * THREADS
    assert _names(got) == _names([plain])
    if "order" not in options:
        drawn = sorted(digest([batch[:2]]) for part in got for batch in part)
        assert drawn == sorted(digest([batch[:2]]) for batch in plain)
    assert all(got)
    assert loader.stats.samples == COUNT
    assert (loader.state_dict()["epoch"], loader.state_dict()["cursor"]) == (1, 0)
    assert "Epoch 0: 41 samples in 14 batches" in loader.explain()
    assert len(list(loader)) == 14


def test_a_consumer_that_fails_takes_nothing_from_the_others(images):
    def work(who, _):
        if who == 1:
            raise KeyError("a bug of the user's")

    got, errors = _draw(_loader(images).shared(), work)
    assert [type(error) for error in errors if error] == ([KeyError] if got[1] else [])
    assert _names(got) == _names([list(_loader(images))])


def test_an_error_of_the_loader_reaches_all(tmp_path):
    images = make_images(tmp_path / "data", COUNT)
    next(images.rglob("*.png")).write_bytes(b"no picture")
    _, errors = _draw(_loader(images).shared())
    assert [type(error) for error in errors] == [OpError] * THREADS
    assert len(set(map(id, errors))) == 1
    # One that is found before there is any batch.
    _, errors = _draw(_loader(images, order=sophon.Replay(_log_of(images))).shared())
    assert [type(error) for error in errors] == [ConfigError] * THREADS


def _log_of(images):
    loader = _loader(images, order="relaxed", on_error="skip")
    loader.set_epoch(7)
    list(loader)
    return loader.log


def test_a_state_may_be_taken_while_others_draw_and_the_rest_is_right(images):
    loader = _loader(images, order=Relaxed(4))
    states = []

    def work(who, _):
        if who == 0:
            states.append(loader.state_dict())

    with loader.shared() as batches:
        first = [next(batches) for _ in range(5)]
        state = loader.state_dict()
        _draw(batches, work)
    assert all(state["epoch"] in (0, 1) for state in states)
    other = _loader(images, num_workers=1)
    other.load_state_dict(state)
    assert _names([first, list(other)]) == _names([list(_loader(images))])


@pytest.mark.parametrize("workers", [0, 2])
def test_closing_ends_it_for_all_also_for_those_who_wait(images, workers):
    with serve(images, options=("--limit", "1kbit")) as server:  # nothing will come for minutes
        loader = _loader(server.url, num_workers=workers, deadline_s=600)
        batches = loader.shared()
        closer = threading.Timer(0.3, batches.close)
        closer.start()
        start_s = time.monotonic()
        got, errors = _draw(batches)
        closer.join()
        assert time.monotonic() - start_s < HANG_S
        server.kill()
    assert got == [[]] * THREADS
    assert errors == [None] * THREADS
    assert next(batches, None) is None
    assert loader.state_dict()["cursor"] == 0
    assert "stopped before its end" in loader.explain()


def test_what_was_never_drawn_from_is_closed_without_a_word(images):
    loader = _loader(images)
    with loader.shared() as batches:
        pass
    batches.close()
    assert next(batches, None) is None


def test_ctrl_c_is_heard_by_a_main_thread_that_stands_in_line(images):
    script = """
import os, signal, sys, threading
import tests.support.deaf_main_thread
import sophon
from tests.support.python_process import run_python
from tests.support.servers import RECIPE

signal.signal(signal.SIGINT, signal.default_int_handler)
never = threading.Event()
batches = sophon.DataLoader(sys.argv[1], RECIPE, batch_size=3, collate_fn=lambda items: never.wait()).shared()
threading.Thread(target=next, args=(batches,), daemon=True).start()
try:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    next(batches)
except KeyboardInterrupt:
    os._exit(3)
"""
    done = run_python("-c", script, str(images))
    assert done.returncode == 3, done.stderr[-2000:]
