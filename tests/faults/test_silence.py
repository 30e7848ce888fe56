"""A node falls silent: its process hangs, its host is gone or the way there is cut, and nobody says so."""

import os
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import sophon
from sophon.bench.proxy import Proxy
from sophon.errors import RetryableError, UnavailableError
from sophon.link import flight as flight_transport
from sophon.link.flight import FlightTransport
from sophon.pipeline import OPS, Pipeline, ops
from tests.faults.struck import BATCH, FAR_S, SEED, SLOWLY, Struck
from tests.support.misbehave import DOZE_S, NODE, Misbehave
from tests.support.network import can_make_links, far_server
from tests.support.servers import RECIPE, digest, serve
from tests.support.settings import grouped
from tests.support.waiting import HANG_S, wait_until

REPOSITORY = str(Path(__file__).parents[2])
SHORT_S = 1.5  # of silence that is noticed: so that tests are short, and above the second between heartbeats
WIDTH = 77  # of every fifth picture


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(flight_transport, "SILENCE_S", SHORT_S)


@pytest.fixture(scope="module")
def server(images):
    with serve(images, options=SLOWLY) as running:
        yield running


@pytest.fixture(scope="module")
def linked(images, tmp_path_factory):
    if not can_make_links():
        pytest.skip("needs root, and ip")
    with far_server(images, tmp_path_factory.mktemp("far"), SLOWLY) as (link, url):
        yield link, url


@contextmanager
def _stopped(server):
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield time.monotonic()
    finally:
        os.kill(server.pid, signal.SIGCONT)
        FlightTransport(server.url).open(RECIPE)  # it is back


def _loader(url, **settings):
    return sophon.DataLoader(
        url, RECIPE, **grouped(batch_size=BATCH, **{"shuffle": True, "seed": SEED, "num_workers": 2} | settings)
    )


# --- and comes back ---------------------------------------------------------------------------------------------------


def _noticed(struck):
    """Wait until a loader has given up a request."""
    wait_until(lambda: struck.loader.stats.retries, "nobody has noticed the silence")


@pytest.mark.slow
def test_stopped_while_a_loader_opens(server, expected, short):
    def fault():
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(2 * SHORT_S)
        os.kill(server.pid, signal.SIGCONT)

    assert Struck(server.url, fault, "opening", policy="2:webp").digest() == expected


def test_stopped_for_longer_than_silence_is_borne(server, expected, short):
    def fault():
        with _stopped(server):
            _noticed(struck)

    struck = Struck(server.url, fault, "mid-stream", policy="2:webp")
    assert struck.digest() == expected


def test_the_link_is_cut_for_longer_than_silence_is_borne(linked, expected, short):
    link, url = linked

    def fault():
        link.cut()
        _noticed(struck)
        link.restore()

    struck = Struck(url, fault, "mid-stream", policy="2:webp")
    assert struck.digest() == expected


@pytest.mark.slow
def test_silence_of_any_kind_with_the_default_bound(server, linked, expected):
    test_stopped_for_longer_than_silence_is_borne(server, expected, None)
    test_the_link_is_cut_for_longer_than_silence_is_borne(linked, expected, None)


# --- or does not ------------------------------------------------------------------------------------------------------


def test_a_request_to_a_silent_node_fails_long_before_its_deadline(server):
    node = FlightTransport(server.url, silence_s=SHORT_S)
    dataset = sophon.RemoteDataset(node, RECIPE)
    with _stopped(server) as since_s:
        with pytest.raises(RetryableError, match=r"nothing arrived for 1\.5 s, so the connection was closed"):
            list(node.fetch(dataset.samples.request(0, range(5)), FAR_S))
        assert 0.9 * SHORT_S < time.monotonic() - since_s < HANG_S
    assert len(list(node.fetch(dataset.samples.request(0, range(5)), FAR_S))) == 5, (
        "and it is asked again when it is back"
    )


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_silent_for_good_is_an_error_at_the_deadline(server, short, workers):
    batches = iter(_loader(server.url, deadline_s=3, buffer_bytes=1, num_workers=workers))
    next(batches)
    with _stopped(server) as since_s:
        with pytest.raises(
            UnavailableError, match=r"no answer for 3 s, after \d+ (try|tries).*Is `sophon serve` running"
        ):
            list(batches)
        assert time.monotonic() - since_s < HANG_S


@pytest.mark.slow
def test_cut_off_for_good_is_an_error_at_the_deadline(linked, short):
    link, url = linked
    batches = iter(_loader(url, deadline_s=3, buffer_bytes=1))
    next(batches)
    link.cut()
    since_s = time.monotonic()
    with pytest.raises(UnavailableError, match="no answer for 3 s"):
        list(batches)
    assert time.monotonic() - since_s < HANG_S
    link.restore()


def test_a_silent_node_is_not_opened_for_longer_than_the_deadline(server):
    with _stopped(server) as since_s:
        with pytest.raises(UnavailableError, match="no answer for 1 s"):
            _loader(server.url, deadline_s=1)
        assert time.monotonic() - since_s < HANG_S


# --- and the trainer leaves -------------------------------------------------------------------------------------------


def _fetching():
    return [thread for thread in threading.enumerate() if thread.name.startswith("sophon-fetch-")]


@pytest.mark.parametrize("silence_s", [FAR_S, SHORT_S], ids=["unnoticed", "noticed"])
@pytest.mark.parametrize("waits_for", ["the first word", "the next word"])
def test_an_epoch_is_left_at_once_while_a_node_is_silent(server, monkeypatch, waits_for, silence_s):
    """Also by Ctrl-C or an error in the training loop: both close the iterator."""
    monkeypatch.setattr(flight_transport, "SILENCE_S", silence_s)
    first = waits_for == "the first word"
    loader = _loader(server.url, buffer_bytes=1 if first else 1 << 30, deadline_s=2 * FAR_S)
    batches = iter(loader)
    next(batches)
    if first:
        wait_until(lambda: loader.stats.samples >= 2 * BATCH)  # the second batch has come, and the third meets silence
    with _stopped(server):
        if first:
            next(batches)
        assert _fetching()
        start_s = time.monotonic()
        batches.close()
        assert time.monotonic() - start_s < HANG_S, "before anybody could notice"
        if silence_s == SHORT_S:
            wait_until(lambda: not _fetching())  # the silence is noticed, and then nothing is left


# --- a node that is at work is not silent -----------------------------------------------------------------------------


@pytest.fixture
def dozing(monkeypatch):
    """A recipe of which every fifth sample takes long on a storage node."""
    monkeypatch.syspath_prepend(REPOSITORY)
    monkeypatch.setenv(NODE, "1")
    monkeypatch.setitem(OPS, "Misbehave", Misbehave)

    def recipe(seconds):
        monkeypatch.setenv(DOZE_S, str(seconds))
        return Pipeline([ops.Decode(), Misbehave("doze", WIDTH), *RECIPE.ops[1:]])

    return recipe


def _digest(url, recipe, count):
    loader = sophon.DataLoader(
        url, recipe, batch_size=5, num_workers=2, policy="3:webp", faults=sophon.Faults(deadline_s=FAR_S)
    )
    batches = iter(loader)
    found = digest([next(batches) for _ in range(count)])
    batches.close()
    return found, loader.stats


PLUGIN = ("--import", "tests.support.plugin_ops")
DUMB = ("--import", "tests.support.no_heartbeat")
QUICK = ("--import", "tests.support.quick_heartbeat")


@pytest.mark.parametrize(("doze_s", "heart"), [(4.0, QUICK), pytest.param(30.0, (), marks=pytest.mark.slow)])
def test_a_sample_that_takes_long_there_does_not_cost_the_connection(images, dozing, monkeypatch, doze_s, heart):
    monkeypatch.setattr(flight_transport, "SILENCE_S", 3.0)
    recipe = dozing(doze_s)
    with serve(images, cores=4, options=(*PLUGIN, *heart)) as server:
        found, stats = _digest(server.url, recipe, 1)
        server.kill()  # others doze there
    assert stats.retries == 0
    assert stats.cuts["3:webp"] >= 5
    monkeypatch.delenv(NODE)
    assert _digest(str(images), recipe, 1)[0] == found


@pytest.mark.slow
def test_without_heartbeats_it_would(images, dozing):
    recipe = dozing(FAR_S)
    with serve(images, options=(*PLUGIN, *DUMB)) as server:
        node = FlightTransport(server.url, silence_s=SHORT_S)
        dataset = sophon.RemoteDataset(node, recipe, policy="3:webp")
        with pytest.raises(RetryableError, match="nothing arrived"):
            list(node.fetch(dataset.samples.request(0, range(5)), FAR_S))
        server.kill()


@pytest.mark.slow
def test_a_large_sample_on_a_slow_link_is_not_silence(tmp_path):
    """Its bytes come all the time, though no word is complete before the last of them."""
    home = tmp_path / "train" / "class"
    home.mkdir(parents=True)
    (home / "large.png").write_bytes(os.urandom(1 << 20))
    with serve(tmp_path / "train") as server, Proxy(server.port) as proxy:
        node = FlightTransport(server.url.replace(str(server.port), str(proxy.port)), silence_s=SHORT_S)
        dataset = sophon.RemoteDataset(node, RECIPE)
        proxy.limit((1 << 20) / 5)
        start_s = time.monotonic()
        (reply,) = node.fetch(dataset.samples.request(0, [0]), 60)
        assert time.monotonic() - start_s > 2 * SHORT_S
        assert bytes(reply.payload) == (home / "large.png").read_bytes()
